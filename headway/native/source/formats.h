/* How the packed form of each quantised format is laid out, and how a row becomes it.
 *
 * Packed: rows in octets of eight, columns in groups; the last octet is filled up with zeros. For each octet, group
 * after group: a header with what scales it, then its blocks of 8 rows x 32 columns as bit planes:
 *
 *   low four bits    128 bytes  byte 32 i + 4 r + c: column 4 i + c of row r, and column 16 + 4 i + c above it
 *   the fifth bit     32 bytes  bit i of byte 4 r + c: column 4 i + c of row r
 *   bits five, six    64 bytes  bits 2 i, 2 i + 1 of byte 32 h + 4 r + c: column 16 h + 4 i + c of row r
 *   eight bits       256 bytes  byte 32 i + 4 r + c: column 4 i + c of row r
 *
 * so that one vector of 32 bytes is four columns of eight rows: a dot product with four activations, repeated for
 * every row, gives each row its own sum, with no sum across a vector at the end.
 *
 *   format        bits  group  header
 *   Q4_0, Q5_0    4, 5     32  half scale[8]                                       w = (q - 8 or 16) scale
 *   Q4_1, Q5_1    4, 5     32  half scale[8], half least[8]                        w = q scale + least
 *   Q8_0             8     32  half scale[8]                                       w = q scale
 *   Q4_K, Q5_K    4, 5    256  half d[8], half dmin[8], u8 s[8 blocks][8], u8 m[8 blocks][8]
 *                                                                                  w = q d s - dmin m
 *   Q6_K             6    256  half d[8], i8 s[16 half blocks][8]                  w = (q - 32) d s
 *   I8               8    all  float scale[8]                                      w = q scale
 *   I4               4  its own  half scale[8], with zeros also u8 zero[8]         w = (q - 8 or zero) scale
 */
#ifndef HW_FORMATS_H
#define HW_FORMATS_H

#include "headway.h"

typedef struct hw_layout {
    int32_t bits;       /* 0 for F32, F16, BF16 and unknown formats */
    int32_t header;     /* bytes */
    int64_t blocks;     /* blocks of 32 columns in a group */
    int64_t groups;     /* in a row */
    int64_t octet;      /* bytes of eight rows */
} hw_layout;

static inline int64_t hw_planes_bytes(int32_t bits) { return 32 * bits; }

hw_layout hw_layout_of(const hw_matrix *matrix);
int hw_is_float(int32_t format);

/* Packs rows 8 octet .. 8 octet + 7 of an unpacked matrix into layout.octet bytes. */
void hw_pack_octet(const hw_matrix *matrix, const hw_layout *layout, int64_t octet, uint8_t *out);

/* Floats of row `row` from `column` on, a multiple of HW_SPAN; how many, at most HW_SPAN. */
#define HW_SPAN 256
int64_t hw_decode(const hw_matrix *matrix, int64_t row, int64_t column, float *out);

#endif
