/* exp, tanh and the activations on eight floats, accurate to about 2e-7; NaN in gives NaN out. */

#define EXP_LOW (-87.3f)  /* below, exp is not a normal float: 0 */
#define EXP_HIGH 88.3762f /* 127.5 log 2: above, infinity */

/* e^x = 2^n e^r with |r| <= log(2) / 2, where e^r = 1 + r + r^2 P(r) (P fitted for the least relative error). */
ALWAYS f8 f8_exp(f8 x) {
    f8 in = f8_max(f8_set(EXP_LOW), f8_min(f8_set(EXP_HIGH), x));
    f8 n = f8_round(f8_mul(in, f8_set(1.44269504f)));
    n = f8_min(f8_set(127.0f), n);
    f8 r = f8_fma(n, f8_set(-0.693359375f), in); /* log 2 in two parts, the first exact with n */
    r = f8_fma(n, f8_set(2.12194440e-4f), r);
    f8 p = f8_set(0.0013901306f);
    p = f8_fma(p, r, f8_set(0.0083632004f));
    p = f8_fma(p, r, f8_set(0.0416668542f));
    p = f8_fma(p, r, f8_set(0.1666657626f));
    p = f8_fma(p, r, f8_set(0.5f));
    f8 value = f8_mul(f8_add(f8_fma(f8_mul(r, r), p, r), f8_set(1.0f)), f8_pow2(n));
    value = f8_if_less(f8_set(EXP_HIGH), x, f8_set(INFINITY), value);
    return f8_if_less(x, f8_set(EXP_LOW), f8_zero(), value);
}

ALWAYS f8 f8_negative(f8 x) { return f8_sub(f8_set(-0.0f), x); }

ALWAYS f8 f8_sigmoid(f8 x) { return f8_div(f8_set(1.0f), f8_add(f8_set(1.0f), f8_exp(f8_negative(x)))); }

/* An odd polynomial near zero, where 1 - 2 / (e^2x + 1) would lose digits. */
ALWAYS f8 f8_tanh(f8 x) {
    f8 t = f8_mul(x, x), p = f8_set(-0.0060969340f);
    p = f8_fma(p, t, f8_set(0.0209973510f));
    p = f8_fma(p, t, f8_set(-0.0538509525f));
    p = f8_fma(p, t, f8_set(0.1333277076f));
    p = f8_fma(p, t, f8_set(-0.3333332837f));
    f8 small = f8_fma(f8_mul(x, t), p, x);
    f8 large = f8_sub(f8_set(1.0f), f8_div(f8_set(2.0f), f8_add(f8_exp(f8_add(x, x)), f8_set(1.0f))));
    return f8_if_less(f8_abs(x), f8_set(0.625f), small, large);
}

/* erf to 1.5e-7 (Abramowitz and Stegun, 7.1.26). */
ALWAYS f8 f8_erf(f8 x) {
    f8 z = f8_abs(x), t = f8_div(f8_set(1.0f), f8_fma(z, f8_set(0.3275911f), f8_set(1.0f)));
    f8 p = f8_set(1.061405429f);
    p = f8_fma(p, t, f8_set(-1.453152027f));
    p = f8_fma(p, t, f8_set(1.421413741f));
    p = f8_fma(p, t, f8_set(-0.284496736f));
    p = f8_fma(p, t, f8_set(0.254829592f));
    f8 value = f8_sub(f8_set(1.0f), f8_mul(f8_mul(p, t), f8_exp(f8_negative(f8_mul(z, z)))));
    return f8_if_less(x, f8_zero(), f8_negative(value), value);
}

/* x f with f in 0 .. 1, where minus infinity gives 0 as its limit does. */
ALWAYS f8 f8_gate(f8 x, f8 f) { return f8_if_less(x, f8_set(-1e30f), f8_negative(f8_zero()), f8_mul(x, f)); }

ALWAYS f8 f8_activate(int kind, f8 x) {
    switch (kind) {
    case HW_RELU: return f8_max(f8_zero(), x);
    case HW_GELU: return f8_gate(x, f8_mul(f8_set(0.5f), f8_add(f8_set(1.0f), f8_erf(f8_mul(x, f8_set(0.70710678f))))));
    case HW_GELU_TANH: { /* (1 + tanh u) / 2 is sigmoid(2 u) */
        f8 cube = f8_mul(f8_mul(x, x), f8_mul(x, f8_set(0.044715f)));
        return f8_gate(x, f8_sigmoid(f8_mul(f8_set(1.59576912f), f8_add(x, cube))));
    }
    case HW_GELU_QUICK: return f8_gate(x, f8_sigmoid(f8_mul(x, f8_set(1.702f))));
    case HW_SILU: return f8_gate(x, f8_sigmoid(x));
    case HW_SIGMOID: return f8_sigmoid(x);
    default: return f8_tanh(x);
    }
}
