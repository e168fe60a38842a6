/* NEON with the dot product of ARMv8.2: eight floats are two vectors of four. */
#include <arm_neon.h>

typedef struct { float32x4_t a, b; } f8;

#define BOTH(call_a, call_b) return (f8){call_a, call_b}

ALWAYS f8 f8_load(const float *p) { BOTH(vld1q_f32(p), vld1q_f32(p + 4)); }
ALWAYS void f8_store(float *p, f8 x) { vst1q_f32(p, x.a), vst1q_f32(p + 4, x.b); }
ALWAYS f8 f8_set(float x) { BOTH(vdupq_n_f32(x), vdupq_n_f32(x)); }
ALWAYS f8 f8_at(const float *p) { BOTH(vld1q_dup_f32(p), vld1q_dup_f32(p)); }
ALWAYS f8 f8_zero(void) { return f8_set(0.0f); }
ALWAYS f8 f8_add(f8 x, f8 y) { BOTH(vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b)); }
ALWAYS f8 f8_sub(f8 x, f8 y) { BOTH(vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b)); }
ALWAYS f8 f8_mul(f8 x, f8 y) { BOTH(vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)); }
ALWAYS f8 f8_div(f8 x, f8 y) { BOTH(vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b)); }
ALWAYS f8 f8_fma(f8 x, f8 y, f8 z) { BOTH(vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)); }
ALWAYS f8 f8_abs(f8 x) { BOTH(vabsq_f32(x.a), vabsq_f32(x.b)); }
ALWAYS f8 f8_round(f8 x) { BOTH(vrndnq_f32(x.a), vrndnq_f32(x.b)); }
ALWAYS f8 f8_if_less(f8 x, f8 y, f8 yes, f8 no) {
    BOTH(vbslq_f32(vcltq_f32(x.a, y.a), yes.a, no.a), vbslq_f32(vcltq_f32(x.b, y.b), yes.b, no.b));
}
/* Not vminq: a NaN of x alone must give y. */
ALWAYS f8 f8_min(f8 x, f8 y) { return f8_if_less(x, y, x, y); }
ALWAYS f8 f8_max(f8 x, f8 y) { return f8_if_less(y, x, x, y); }

ALWAYS float32x4_t four_pow2(float32x4_t n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23));
}
ALWAYS f8 f8_pow2(f8 n) { BOTH(four_pow2(n.a), four_pow2(n.b)); }
ALWAYS float f8_sum(f8 x) { return vaddvq_f32(vaddq_f32(x.a, x.b)); }
ALWAYS void f8_sums(const f8 x[4], float *out) {
    float32x4_t low = vpaddq_f32(vaddq_f32(x[0].a, x[0].b), vaddq_f32(x[1].a, x[1].b));
    float32x4_t high = vpaddq_f32(vaddq_f32(x[2].a, x[2].b), vaddq_f32(x[3].a, x[3].b));
    vst1q_f32(out, vpaddq_f32(low, high));
}
ALWAYS float f8_largest(f8 x) { return vmaxvq_f32(vmaxq_f32(x.a, x.b)); }

ALWAYS float32x4_t four_half(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
ALWAYS f8 f8_load_half(const uint16_t *p) { BOTH(four_half(p), four_half(p + 4)); }
ALWAYS void f8_store_half(uint16_t *p, f8 x) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x.a)));
    vst1_u16(p + 4, vreinterpret_u16_f16(vcvt_f16_f32(x.b)));
}
ALWAYS float32x4_t four_bfloat(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
ALWAYS f8 f8_load_bfloat(const uint16_t *p) { BOTH(four_bfloat(p), four_bfloat(p + 4)); }
ALWAYS f8 f8_load_u8(const uint8_t *p) {
    uint16x8_t wide = vmovl_u8(vld1_u8(p));
    BOTH(vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(wide))));
}
ALWAYS f8 f8_load_i8(const int8_t *p) {
    int16x8_t wide = vmovl_s8(vld1_s8(p));
    BOTH(vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(wide))));
}

ALWAYS int8x8_t eight_bytes(f8 x) {
    return vqmovn_s16(vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(x.a)), vqmovn_s32(vcvtnq_s32_f32(x.b))));
}
ALWAYS void bytes_store(int8_t *p, f8 a, f8 b, f8 c, f8 d) {
    vst1_s8(p, eight_bytes(a)), vst1_s8(p + 8, eight_bytes(b));
    vst1_s8(p + 16, eight_bytes(c)), vst1_s8(p + 24, eight_bytes(d));
}

ALWAYS void bytes_sums(const int8_t *p, float sums[2]) {
    sums[0] = (float)vaddlvq_s8(vld1q_s8(p)), sums[1] = (float)vaddlvq_s8(vld1q_s8(p + 16));
}

typedef struct { int8x16_t v[8][2]; } planes; /* rows 0 .. 3 and 4 .. 7 */

ALWAYS void planes_load(planes *to, const uint8_t *p, int bits) {
    for (int i = 0; i < 8; i++) {
        for (int h = 0; h < 2; h++) {
            if (bits == 8) {
                to->v[i][h] = vreinterpretq_s8_u8(vld1q_u8(p + 32 * i + 16 * h));
                continue;
            }
            uint8x16_t low = vld1q_u8(p + 32 * (i % 4) + 16 * h);
            low = i < 4 ? vandq_u8(low, vdupq_n_u8(15)) : vshrq_n_u8(low, 4);
            if (bits == 5) {
                uint8x16_t high = vshlq_u8(vld1q_u8(p + 128 + 16 * h), vdupq_n_s8((int8_t)(4 - i)));
                low = vorrq_u8(low, vandq_u8(high, vdupq_n_u8(0x10)));
            }
            if (bits == 6) {
                uint8x16_t high = vld1q_u8(p + 128 + 32 * (i / 4) + 16 * h);
                high = vshlq_u8(high, vdupq_n_s8((int8_t)(4 - 2 * (i % 4))));
                low = vorrq_u8(low, vandq_u8(high, vdupq_n_u8(0x30)));
            }
            to->v[i][h] = vreinterpretq_s8_u8(low);
        }
    }
}

ALWAYS f8 planes_dot_half(const planes *w, const int8_t *a, int half) {
    int32x4_t sum[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
    int8x16_t x = vld1q_s8(a + 16 * half);
    for (int h = 0; h < 2; h++) {
        sum[h] = vdotq_laneq_s32(sum[h], w->v[4 * half][h], x, 0);
        sum[h] = vdotq_laneq_s32(sum[h], w->v[4 * half + 1][h], x, 1);
        sum[h] = vdotq_laneq_s32(sum[h], w->v[4 * half + 2][h], x, 2);
        sum[h] = vdotq_laneq_s32(sum[h], w->v[4 * half + 3][h], x, 3);
    }
    BOTH(vcvtq_f32_s32(sum[0]), vcvtq_f32_s32(sum[1]));
}

ALWAYS f8 planes_dot(const planes *w, const int8_t *a, int bits, const float *sum) {
    (void)bits, (void)sum;
    return f8_add(planes_dot_half(w, a, 0), planes_dot_half(w, a, 1));
}
