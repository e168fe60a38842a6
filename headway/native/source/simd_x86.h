/* AVX2 with FMA and F16C; where VNNI is there (AVX-VNNI or AVX-512), one instruction for the byte products. */
#include <immintrin.h>

#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
#define HW_VNNI
#endif

typedef __m256 f8;

ALWAYS f8 f8_load(const float *p) { return _mm256_loadu_ps(p); }
ALWAYS void f8_store(float *p, f8 x) { _mm256_storeu_ps(p, x); }
ALWAYS f8 f8_set(float x) { return _mm256_set1_ps(x); }
ALWAYS f8 f8_at(const float *p) { return _mm256_broadcast_ss(p); }
ALWAYS f8 f8_zero(void) { return _mm256_setzero_ps(); }
ALWAYS f8 f8_add(f8 a, f8 b) { return _mm256_add_ps(a, b); }
ALWAYS f8 f8_sub(f8 a, f8 b) { return _mm256_sub_ps(a, b); }
ALWAYS f8 f8_mul(f8 a, f8 b) { return _mm256_mul_ps(a, b); }
ALWAYS f8 f8_div(f8 a, f8 b) { return _mm256_div_ps(a, b); }
ALWAYS f8 f8_fma(f8 a, f8 b, f8 c) { return _mm256_fmadd_ps(a, b, c); }
ALWAYS f8 f8_min(f8 a, f8 b) { return _mm256_min_ps(a, b); }
ALWAYS f8 f8_max(f8 a, f8 b) { return _mm256_max_ps(a, b); }
ALWAYS f8 f8_abs(f8 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
ALWAYS f8 f8_round(f8 x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

/* Where a < b: yes, else no. */
ALWAYS f8 f8_if_less(f8 a, f8 b, f8 yes, f8 no) { return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ)); }

/* 2^n of whole n from -126 to 127. */
ALWAYS f8 f8_pow2(f8 n) {
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}

ALWAYS float f8_sum(f8 x) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

/* The sums of four vectors at once. */
ALWAYS void f8_sums(const f8 x[4], float *out) {
    __m256 four = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1)));
}

ALWAYS float f8_largest(f8 x) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

ALWAYS f8 f8_load_half(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
ALWAYS void f8_store_half(uint16_t *p, f8 x) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
ALWAYS f8 f8_load_bfloat(const uint16_t *p) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
ALWAYS f8 f8_load_u8(const uint8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
ALWAYS f8 f8_load_i8(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

/* 32 floats within -127 .. 127, rounded to nearest even, as bytes in order. */
ALWAYS void bytes_store(int8_t *p, f8 a, f8 b, f8 c, f8 d) {
    __m256i ab = _mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
    __m256i cd = _mm256_packs_epi32(_mm256_cvtps_epi32(c), _mm256_cvtps_epi32(d));
    __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* packs works inside 128 bits */
    __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), order);
    _mm256_storeu_si256((__m256i *)p, bytes);
}

/* Sums of the first and the last 16 of 32 bytes. */
ALWAYS void bytes_sums(const int8_t *p, float sums[2]) {
    __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), _mm256_loadu_si256((const __m256i *)p));
    __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    fours = _mm256_add_epi32(fours, _mm256_shuffle_epi32(fours, 0x4e));
    fours = _mm256_add_epi32(fours, _mm256_shuffle_epi32(fours, 0xb1));
    sums[0] = (float)_mm256_extract_epi32(fours, 0);
    sums[1] = (float)_mm256_extract_epi32(fours, 4);
}

typedef struct { __m256i v[8]; } planes;

ALWAYS __m256i load32(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* Vector i: the low half of byte vector i holds columns 4i.., its high half columns 16 + 4i... */
ALWAYS void planes_low4(planes *to, const uint8_t *p) {
    const __m256i mask = _mm256_set1_epi8(15);
    for (int i = 0; i < 4; i++) {
        __m256i both = load32(p + 32 * i);
        to->v[i] = _mm256_and_si256(both, mask);
        to->v[i + 4] = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
    }
}

/* `bits` fields of `x` moved from bit `from` to bit 4 of each byte. */
ALWAYS __m256i to_bit4(__m256i x, int from, uint8_t mask) {
    x = from <= 4 ? _mm256_slli_epi16(x, 4 - from) : _mm256_srli_epi16(x, from - 4);
    return _mm256_and_si256(x, _mm256_set1_epi8((char)mask));
}

ALWAYS void planes_load(planes *to, const uint8_t *p, int bits) {
    if (bits == 8) {
        for (int i = 0; i < 8; i++) to->v[i] = load32(p + 32 * i);
#ifdef HW_VNNI
        for (int i = 0; i < 8; i++) to->v[i] = _mm256_xor_si256(to->v[i], _mm256_set1_epi8(-128)); /* + 128, unsigned */
#endif
        return;
    }
    planes_low4(to, p);
    if (bits == 5) {
        __m256i high = load32(p + 128);
        for (int i = 0; i < 8; i++) to->v[i] = _mm256_or_si256(to->v[i], to_bit4(high, i, 0x10));
    }
    if (bits == 6) {
        for (int i = 0; i < 8; i++) {
            __m256i high = load32(p + 128 + 32 * (i / 4));
            to->v[i] = _mm256_or_si256(to->v[i], to_bit4(high, 2 * (i % 4), 0x30));
        }
    }
}

ALWAYS __m256i quad(const int8_t *a) {
    int32_t four;
    memcpy(&four, a, 4);
    return _mm256_set1_epi32(four);
}

#ifdef HW_VNNI

#ifdef __AVX512VNNI__
#define DPBUSD _mm256_dpbusd_epi32
#else
#define DPBUSD _mm256_dpbusd_avx_epi32
#endif

ALWAYS __m256i dot_half(const planes *w, const int8_t *a, int from) {
    __m256i sum = _mm256_setzero_si256();
    for (int i = from; i < from + 4; i++) sum = DPBUSD(sum, w->v[i], quad(a + 4 * i));
    return sum;
}

ALWAYS f8 planes_dot_half(const planes *w, const int8_t *a, int half) {
    return _mm256_cvtepi32_ps(dot_half(w, a, 4 * half));
}

ALWAYS f8 planes_dot(const planes *w, const int8_t *a, int bits, const float *sum) {
    f8 all = _mm256_cvtepi32_ps(_mm256_add_epi32(dot_half(w, a, 0), dot_half(w, a, 4)));
    return bits == 8 ? f8_fma(f8_set(-128.0f), f8_at(sum), all) : all;
}

#else

/* Products of vectors from .. from + count - 1, summed in 16 bits: count x 2 x 127 x (2^bits - 1) < 2^15. */
ALWAYS __m256i dot_short(const planes *w, const int8_t *a, int from, int count) {
    __m256i sum = _mm256_maddubs_epi16(w->v[from], quad(a + 4 * from));
    for (int i = from + 1; i < from + count; i++) {
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w->v[i], quad(a + 4 * i)));
    }
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

/* Six bits: columns 0 .. 15 (half 0) or 16 .. 31. */
ALWAYS f8 planes_dot_half(const planes *w, const int8_t *a, int half) {
    return _mm256_cvtepi32_ps(_mm256_add_epi32(dot_short(w, a, 4 * half, 2), dot_short(w, a, 4 * half + 2, 2)));
}

ALWAYS f8 planes_dot(const planes *w, const int8_t *a, int bits, const float *sum) {
    (void)sum;
    if (bits == 4) return _mm256_cvtepi32_ps(dot_short(w, a, 0, 8));
    if (bits == 5) return _mm256_cvtepi32_ps(_mm256_add_epi32(dot_short(w, a, 0, 4), dot_short(w, a, 4, 4)));
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i all = _mm256_setzero_si256();
    for (int i = 0; i < 8; i++) { /* |w| times a with w's sign: 128 x 127 x 2 < 2^15 */
        __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w->v[i]), _mm256_sign_epi8(quad(a + 4 * i), w->v[i]));
        all = _mm256_add_epi32(all, _mm256_madd_epi16(pairs, ones));
    }
    return _mm256_cvtepi32_ps(all);
}

#endif
