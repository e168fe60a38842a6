/* The portable path: every step spelled out, the oracle of the others. */

typedef struct { float at[8]; } f8;

#define EACH(expression)                                     \
    f8 out;                                                  \
    for (int i = 0; i < 8; i++) out.at[i] = (expression);    \
    return out

/* Weights may lie at any address: memcpy, not a pointer of their type. */
ALWAYS f8 f8_load(const float *p) {
    f8 out;
    memcpy(out.at, p, sizeof out.at);
    return out;
}
ALWAYS void f8_store(float *p, f8 x) { memcpy(p, x.at, sizeof x.at); }
ALWAYS f8 f8_set(float x) { EACH(x); }
ALWAYS f8 f8_at(const float *p) { EACH(*p); }
ALWAYS f8 f8_zero(void) { EACH(0.0f); }
ALWAYS f8 f8_add(f8 a, f8 b) { EACH(a.at[i] + b.at[i]); }
ALWAYS f8 f8_sub(f8 a, f8 b) { EACH(a.at[i] - b.at[i]); }
ALWAYS f8 f8_mul(f8 a, f8 b) { EACH(a.at[i] * b.at[i]); }
ALWAYS f8 f8_div(f8 a, f8 b) { EACH(a.at[i] / b.at[i]); }
ALWAYS f8 f8_fma(f8 a, f8 b, f8 c) { EACH(a.at[i] * b.at[i] + c.at[i]); }
ALWAYS f8 f8_min(f8 a, f8 b) { EACH(a.at[i] < b.at[i] ? a.at[i] : b.at[i]); }
ALWAYS f8 f8_max(f8 a, f8 b) { EACH(a.at[i] > b.at[i] ? a.at[i] : b.at[i]); }
ALWAYS f8 f8_abs(f8 x) { EACH(fabsf(x.at[i])); }
ALWAYS f8 f8_round(f8 x) { EACH(nearbyintf(x.at[i])); }
ALWAYS f8 f8_if_less(f8 a, f8 b, f8 yes, f8 no) { EACH(a.at[i] < b.at[i] ? yes.at[i] : no.at[i]); }

/* 2^n of whole n from -126 to 127; anything for NaN. */
ALWAYS float pow2(float n) {
    uint32_t bits = n == n ? (uint32_t)((int32_t)n + 127) << 23 : 0;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
ALWAYS f8 f8_pow2(f8 n) { EACH(pow2(n.at[i])); }

ALWAYS float f8_sum(f8 x) {
    float half[4];
    for (int i = 0; i < 4; i++) half[i] = x.at[i] + x.at[i + 4];
    return (half[0] + half[2]) + (half[1] + half[3]);
}

ALWAYS void f8_sums(const f8 x[4], float *out) {
    for (int i = 0; i < 4; i++) out[i] = f8_sum(x[i]);
}

ALWAYS float f8_largest(f8 x) {
    float most = x.at[0];
    for (int i = 1; i < 8; i++) most = x.at[i] > most ? x.at[i] : most;
    return most;
}

ALWAYS float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Half precision: five bits of exponent, ten of mantissa; below 2^-14 in steps of 2^-24. */
ALWAYS float float_of_half(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 1023;
    if (exponent == 31) return float_of_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)mantissa * 0x1p-24f;
    return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

ALWAYS uint16_t half_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00);                      /* rounds above 65504 */
    if (bits < 0x38800000) return (uint16_t)(sign | (uint32_t)nearbyintf(fabsf(x) * 0x1p24f)); /* below 2^-14 */
    bits += 0xfff + (bits >> 13 & 1);                                              /* to nearest, ties to even */
    return (uint16_t)(sign | (bits - (112u << 23)) >> 13);
}

ALWAYS uint16_t two_bytes(const uint16_t *p, int i) {
    uint16_t value;
    memcpy(&value, (const uint8_t *)p + 2 * i, 2);
    return value;
}

ALWAYS f8 f8_load_half(const uint16_t *p) { EACH(float_of_half(two_bytes(p, i))); }
ALWAYS void f8_store_half(uint16_t *p, f8 x) {
    for (int i = 0; i < 8; i++) p[i] = half_of_float(x.at[i]);
}
ALWAYS f8 f8_load_bfloat(const uint16_t *p) { EACH(float_of_bits((uint32_t)two_bytes(p, i) << 16)); }
ALWAYS f8 f8_load_u8(const uint8_t *p) { EACH((float)p[i]); }
ALWAYS f8 f8_load_i8(const int8_t *p) { EACH((float)p[i]); }

ALWAYS void bytes_store(int8_t *p, f8 a, f8 b, f8 c, f8 d) {
    const f8 all[4] = {a, b, c, d};
    for (int i = 0; i < 32; i++) p[i] = (int8_t)nearbyintf(all[i / 8].at[i % 8]);
}

ALWAYS void bytes_sums(const int8_t *p, float sums[2]) {
    sums[0] = sums[1] = 0;
    for (int i = 0; i < 32; i++) sums[i / 16] += p[i];
}

typedef struct { int16_t v[8][32]; } planes; /* vector i, row r, column 4i + c at [i][4r + c] */

ALWAYS void planes_load(planes *to, const uint8_t *p, int bits) {
    for (int i = 0; i < 8; i++) {
        for (int at = 0; at < 32; at++) {
            if (bits == 8) {
                to->v[i][at] = (int8_t)p[32 * i + at];
                continue;
            }
            int value = p[32 * (i % 4) + at] >> (i < 4 ? 0 : 4) & 15;
            if (bits == 5) value |= (p[128 + at] >> i & 1) << 4;
            if (bits == 6) value |= (p[128 + 32 * (i / 4) + at] >> 2 * (i % 4) & 3) << 4;
            to->v[i][at] = (int16_t)value;
        }
    }
}

ALWAYS f8 planes_dot_half(const planes *w, const int8_t *a, int half) {
    f8 out;
    for (int row = 0; row < 8; row++) {
        int32_t sum = 0;
        for (int column = 16 * half; column < 16 * half + 16; column++) {
            sum += w->v[column / 4][4 * row + column % 4] * a[column];
        }
        out.at[row] = (float)sum;
    }
    return out;
}

ALWAYS f8 planes_dot(const planes *w, const int8_t *a, int bits, const float *sum) {
    (void)bits, (void)sum;
    return f8_add(planes_dot_half(w, a, 0), planes_dot_half(w, a, 1));
}
