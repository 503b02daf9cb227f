// One decoding step of `DualStreamNetwork` and the draws behind it, in float32; `native.py` compiles and calls this file.
//
// Rows are shared out among threads that never wait for each other inside a call: a thread takes its rows through all
// layers. Every sum runs in the same order whatever rows stand beside, so a row's numbers do not depend on its neighbours.
// Left out: other precisions, adapters, prompts (torch reads those), graphics cards.
// Alphabet: n rows, d hidden size, H heads, J key heads, D head size, P prompt positions, T steps, K slots of a head.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <system_error>
#include <thread>
#include <vector>

namespace {

#ifdef __AVX512F__
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif
// Columns of a packed matrix that are multiplied at once: two vectors.
constexpr int PANEL = 2 * LANES;
// Rows that are multiplied at once: 6 x 2 sums fill the sixteen registers of AVX2 and leave room for the factors.
constexpr int TILE = 6;
// Rows whose logits exist at once, a thread.
constexpr int DRAWN = 32;

typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef int32_t IntVec __attribute__((vector_size(4 * LANES)));
// Attention goes by eight: heads are often no multiple of sixteen.
typedef float Oct __attribute__((vector_size(32)));
typedef float Quad __attribute__((vector_size(16)));

template <typename V = Vec>
inline V load(const float* from) {
    V found;
    std::memcpy(&found, from, sizeof found);
    return found;
}

template <typename V>
inline void store(float* to, V value) {
    std::memcpy(to, &value, sizeof value);
}

// Taking nothing away is no operation to the compiler; adding it would be, for the sake of -0.
inline Vec same(float value) { return value - Vec{}; }

template <typename V>
inline float total(V value) {
    constexpr int quads = sizeof(V) / sizeof(Quad);
    Quad part[quads];
    std::memcpy(part, &value, sizeof value);
    for (int width = quads / 2; width > 0; width /= 2)
        for (int one = 0; one < width; one++) part[one] += part[one + width];
    return (part[0][0] + part[0][1]) + (part[0][2] + part[0][3]);
}

inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }

inline float largest(Vec value) {
    float found = value[0];
    for (int lane = 1; lane < LANES; lane++) found = std::max(found, value[lane]);
    return found;
}

// e^x to two units in the last place between -87 and 88, outside of which x is moved to that border.
inline Vec exponential(Vec x) {
    // In this order of comparison what is no number stays none.
    x = x < -87.0f ? same(-87.0f) : x;
    x = x > 88.0f ? same(88.0f) : x;
    // Adding 1.5 * 2^23 rounds to a whole number, which then stands in the low bits.
    const Vec shift = same(12582912.0f);
    Vec shifted = x * 1.44269504088896341f + shift;
    Vec power = shifted - shift;
    Vec r = x - power * 0.693359375f;
    r = r + power * 2.12194440e-4f;
    Vec sum = same(1.0f / 5040);
    sum = sum * r + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 0.5f;
    sum = sum * r + 1.0f;
    sum = sum * r + 1.0f;
    IntVec bits;
    std::memcpy(&bits, &sum, sizeof bits);
    bits += __builtin_convertvector(power, IntVec) << 23;
    std::memcpy(&sum, &bits, sizeof bits);
    return sum;
}

// -- products with packed weights -------------------------------------------------------------------------------------

// What becomes of a product: it is written (with a bias where there is one), added to what is there, or the left half of
// each panel is a gate, silu(left) * right.
enum Kind { WRITE, ADD, GATE };

template <int ROWS, Kind KIND>
void multiply_tile(const float* x, int64_t depth, const float* panel, const float* bias, float* out, int64_t stride,
                   int64_t width) {
    Vec left[ROWS], right[ROWS];
    for (int row = 0; row < ROWS; row++) {
        left[row] = KIND == WRITE && bias ? load(bias) : Vec{};
        right[row] = KIND == WRITE && bias ? load(bias + LANES) : Vec{};
    }
    for (int64_t k = 0; k < depth; k++, panel += PANEL) {
        // The next panel, which stands behind this one.
        __builtin_prefetch(panel + depth * PANEL, 0, 2);
        const Vec here = load(panel), there = load(panel + LANES);
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; row++) {
            const Vec factor = same(x[row * depth + k]);
            left[row] += factor * here;
            right[row] += factor * there;
        }
    }
    for (int row = 0; row < ROWS; row++) {
        float result[PANEL];
        if (KIND == GATE) {
            store(result, left[row] / (1.0f + exponential(-left[row])) * right[row]);
        } else {
            store(result, left[row]);
            store(result + LANES, right[row]);
        }
        float* to = out + row * stride;
        for (int64_t column = 0; column < width; column++) to[column] = KIND == ADD ? to[column] + result[column] : result[column];
    }
}

// x [rows, depth] times a matrix of `columns` columns, packed as panels [columns / PANEL, depth, PANEL] with zeros behind
// the last column; a bias has zeros there too. Rows of `out` are `stride` apart.
template <Kind KIND>
void multiply(const float* x, int64_t rows, int64_t depth, const float* packed, int64_t columns, const float* bias, float* out,
              int64_t stride) {
    constexpr int64_t step = KIND == GATE ? LANES : PANEL;
    const int64_t tiles = (rows + TILE - 1) / TILE;
    for (int64_t column = 0; column < columns; column += step, packed += depth * PANEL) {
        const int64_t width = std::min(step, columns - column);
        const float* here = bias ? bias + column : nullptr;
        for (int64_t tile = 0; tile < tiles; tile++) {
            // Tiles of like height: a short last one would wait for its own sums.
            const int64_t first = rows * tile / tiles, last = rows * (tile + 1) / tiles;
            const float* from = x + first * depth;
            float* to = out + first * stride + column;
            switch (last - first) {
                case 1: multiply_tile<1, KIND>(from, depth, packed, here, to, stride, width); break;
                case 2: multiply_tile<2, KIND>(from, depth, packed, here, to, stride, width); break;
                case 3: multiply_tile<3, KIND>(from, depth, packed, here, to, stride, width); break;
                case 4: multiply_tile<4, KIND>(from, depth, packed, here, to, stride, width); break;
                case 5: multiply_tile<5, KIND>(from, depth, packed, here, to, stride, width); break;
                default: multiply_tile<6, KIND>(from, depth, packed, here, to, stride, width);
            }
        }
    }
}

// -- attention --------------------------------------------------------------------------------------------------------

constexpr int64_t WIDEST = 8;

// Adds to scores [count] the products of q [8 PARTS] with the same part of each key; keys are `size` apart.
struct Score {
    template <int PARTS>
    static void run(float* scores, const float* keys, int64_t count, int64_t size, float* q) {
        Oct query[PARTS];
        for (int part = 0; part < PARTS; part++) query[part] = load<Oct>(q + part * 8);
        for (int64_t at = 0; at < count; at++, keys += size) {
            Oct sum = query[0] * load<Oct>(keys);
#pragma GCC unroll 8
            for (int part = 1; part < PARTS; part++) sum += query[part] * load<Oct>(keys + part * 8);
            scores[at] += total(sum);
        }
    }
};

// Adds to out [8 PARTS] the weighted sum of the same part of each value.
struct Weigh {
    template <int PARTS>
    static void run(float* weights, const float* values, int64_t count, int64_t size, float* out) {
        Oct sum[PARTS];
        for (int part = 0; part < PARTS; part++) sum[part] = load<Oct>(out + part * 8);
        for (int64_t at = 0; at < count; at++, values += size) {
            const Oct weight = weights[at] - Oct{};
#pragma GCC unroll 8
            for (int part = 0; part < PARTS; part++) sum[part] += weight * load<Oct>(values + part * 8);
        }
        for (int part = 0; part < PARTS; part++) store(out + part * 8, sum[part]);
    }
};

// Runs one of them over whole heads, which are a multiple of eight.
template <typename Work>
void over_head(float* scores, const float* memory, int64_t count, int64_t size, float* head) {
    for (int64_t done = 0; done < size; done += 8 * WIDEST, memory += 8 * WIDEST, head += 8 * WIDEST)
        switch (std::min(WIDEST, (size - done) / 8)) {
            case 1: Work::template run<1>(scores, memory, count, size, head); break;
            case 2: Work::template run<2>(scores, memory, count, size, head); break;
            case 3: Work::template run<3>(scores, memory, count, size, head); break;
            case 4: Work::template run<4>(scores, memory, count, size, head); break;
            case 5: Work::template run<5>(scores, memory, count, size, head); break;
            case 6: Work::template run<6>(scores, memory, count, size, head); break;
            case 7: Work::template run<7>(scores, memory, count, size, head); break;
            default: Work::template run<8>(scores, memory, count, size, head);
        }
}

// Turns scores [count] into e^(score - largest), with room for a vector behind them; gives the sum.
float exponentiate(float* scores, int64_t count) {
    for (int lane = 0; lane < LANES; lane++) scores[count + lane] = -std::numeric_limits<float>::infinity();
    Vec most = load(scores);
    for (int64_t at = LANES; at < count; at += LANES) most = larger(most, load(scores + at));
    const float top = largest(most);
    Vec sum{};
    for (int64_t at = 0; at < count; at += LANES) {
        const Vec here = exponential(load(scores + at) - top);
        store(scores + at, here);
        sum += here;
    }
    return total(sum);
}

}  // namespace

extern "C" {

// Packed weights of one layer; q|k|v and gate|up are one matrix each.
struct Layer {
    const float *before, *qkv, *qkv_bias, *out, *between, *gate_up, *down;
};

// The network: layers are those of the text branch, shared ones first, then those of the audio branch.
struct Plan {
    int64_t hidden, inner, heads, kv_heads, head_size, turned, in_pairs, shared, text_layers, audio_layers;
    float eps;
    const Layer* layers;
    const float *embedding, *text_norm, *audio_norm;
};

// Keys and values: of prompts [layers, seats, J, P, D], of answers [layers, places, J, T, D]; row n stands in place
// `places[n]`, behind the prompt in seat `places[n] / group`, and has `lengths[n]` steps. Cosine and sine are [positions, turned / 2].
struct Cache {
    float *prompt_keys, *prompt_values, *keys, *values;
    int64_t seats, prompt_width, answers, capacity, group;
    const int64_t *prompt_lengths, *places, *lengths;
    const float *cosine, *sine;
};

int64_t lanes() { return LANES; }
}

namespace {

void normalise(const float* x, const float* weight, int64_t size, float eps, float* out) {
    Vec sum{};
    int64_t at = 0;
    for (; at + LANES <= size; at += LANES) sum += load(x + at) * load(x + at);
    float squares = total(sum);
    for (; at < size; at++) squares += x[at] * x[at];
    const float scale = 1.0f / std::sqrt(squares / size + eps);
    for (at = 0; at < size; at++) out[at] = x[at] * scale * weight[at];
}

void turn(float* head, int64_t turned, bool in_pairs, const float* cosine, const float* sine) {
    const int64_t half = turned / 2, apart = in_pairs ? 1 : half, step = in_pairs ? 2 : 1;
    for (int64_t pair = 0; pair < half; pair++) {
        float &one = head[pair * step], &other = head[pair * step + apart];
        const float was = one;
        one = was * cosine[pair] - other * sine[pair];
        other = other * cosine[pair] + was * sine[pair];
    }
}

// Buffers of the rows of one thread.
struct Rows {
    int64_t first, count;
    float *x, *normed, *qkv, *seen, *inner, *scores;
};

void attend(const Plan& plan, const Cache& cache, int64_t layer, const Rows& rows) {
    const int64_t size = plan.head_size, repeats = plan.heads / plan.kv_heads;
    const int64_t width = (plan.heads + 2 * plan.kv_heads) * size;
    const float scale = 1.0f / std::sqrt(static_cast<float>(size));
    for (int64_t at = 0; at < rows.count; at++) {
        const int64_t row = rows.first + at, place = cache.places[row], seat = place / cache.group;
        const int64_t prompt = cache.prompt_lengths[seat], own = cache.lengths[row] + 1, both = prompt + own;
        const int64_t half = plan.turned / 2;
        const float *cosine = cache.cosine + (both - 1) * half, *sine = cache.sine + (both - 1) * half;
        float* q = rows.qkv + at * width;
        for (int64_t head = 0; head < plan.heads + plan.kv_heads; head++)
            turn(q + head * size, plan.turned, plan.in_pairs, cosine, sine);
        for (int64_t value = 0; value < plan.heads * size; value++) q[value] *= scale;
        for (int64_t pair = 0; pair < plan.kv_heads; pair++) {
            const int64_t theirs = ((layer * cache.seats + seat) * plan.kv_heads + pair) * cache.prompt_width * size;
            const int64_t ours = ((layer * cache.answers + place) * plan.kv_heads + pair) * cache.capacity * size;
            const float* key = q + (plan.heads + pair) * size;
            std::memcpy(cache.keys + ours + (own - 1) * size, key, size * sizeof(float));
            std::memcpy(cache.values + ours + (own - 1) * size, key + plan.kv_heads * size, size * sizeof(float));
            for (int64_t head = pair * repeats; head < (pair + 1) * repeats; head++) {
                float *scores = rows.scores, *out = rows.seen + (at * plan.heads + head) * size;
                std::fill(scores, scores + both, 0.0f);
                over_head<Score>(scores, cache.prompt_keys + theirs, prompt, size, q + head * size);
                over_head<Score>(scores + prompt, cache.keys + ours, own, size, q + head * size);
                const float sum = exponentiate(scores, both);
                std::fill(out, out + size, 0.0f);
                over_head<Weigh>(scores, cache.prompt_values + theirs, prompt, size, out);
                over_head<Weigh>(scores + prompt, cache.values + ours, own, size, out);
                for (int64_t value = 0; value < size; value++) out[value] /= sum;
            }
        }
    }
}

void run_layer(const Plan& plan, const Cache& cache, int64_t number, const Rows& rows, float* x) {
    const Layer& layer = plan.layers[number];
    const int64_t d = plan.hidden, seen = plan.heads * plan.head_size, width = seen + 2 * plan.kv_heads * plan.head_size;
    for (int64_t at = 0; at < rows.count; at++) normalise(x + at * d, layer.before, d, plan.eps, rows.normed + at * d);
    multiply<WRITE>(rows.normed, rows.count, d, layer.qkv, width, layer.qkv_bias, rows.qkv, width);
    attend(plan, cache, number, rows);
    multiply<ADD>(rows.seen, rows.count, seen, layer.out, d, nullptr, x, d);
    for (int64_t at = 0; at < rows.count; at++) normalise(x + at * d, layer.between, d, plan.eps, rows.normed + at * d);
    multiply<GATE>(rows.normed, rows.count, d, layer.gate_up, plan.inner, nullptr, rows.inner, plan.inner);
    multiply<ADD>(rows.inner, rows.count, plan.inner, layer.down, d, nullptr, x, d);
}

// Work of n rows on some threads: `work(first, last, thread)`.
void share_out(int64_t n, int64_t threads, const std::function<void(int64_t, int64_t, int64_t)>& work) {
    threads = std::max<int64_t>(1, std::min(threads, n));
    std::vector<std::thread> others;
    int64_t started = 1;
    try {
        for (; started < threads; started++)
            others.emplace_back(work, n * started / threads, n * (started + 1) / threads, started);
    } catch (const std::system_error&) {
        // No more threads can be had: the rest is done here.
    }
    work(0, n / threads, 0);
    for (; started < threads; started++) work(n * started / threads, n * (started + 1) / threads, started);
    for (auto& other : others) other.join();
}

int64_t floats_a_row(const Plan& plan) {
    return 3 * plan.hidden + 2 * (plan.heads + plan.kv_heads) * plan.head_size + plan.inner;
}

// Draws one index by the inverse of the cumulative distribution, among the `top_k` likeliest (0: all). `weights` has room
// for a vector behind them.
void draw_one(const float* logits, int64_t count, float temperature, int64_t top_k, float uniform, float* weights, int64_t* index,
              float* logp) {
    constexpr float nothing = -std::numeric_limits<float>::infinity();
    for (int64_t at = 0; at < count; at++) weights[at] = logits[at] / temperature;
    float least = nothing;
    if (0 < top_k && top_k < count) {
        std::vector<float> sorted(weights, weights + count);
        std::nth_element(sorted.begin(), sorted.begin() + (top_k - 1), sorted.end(), std::greater<float>());
        least = sorted[top_k - 1];
    }
    for (int lane = 0; lane < LANES; lane++) weights[count + lane] = nothing;
    Vec most = load(weights);
    for (int64_t at = LANES; at < count; at += LANES) most = larger(most, load(weights + at));
    const float top = largest(most);
    double sum = 0;
    for (int64_t at = 0; at < count; at += LANES) {
        const Vec scaled = load(weights + at);
        // Not `>=`: what is no number shall stay none.
        const Vec here = scaled < least || scaled == nothing ? Vec{} : exponential(scaled - top);
        store(weights + at, here);
        sum += total(here);
    }
    *index = 0;
    *logp = std::numeric_limits<float>::quiet_NaN();
    if (!(sum > 0)) return;
    const double wanted = uniform * sum;
    double reached = 0;
    int64_t start = 0, found = -1;
    // Whole vectors are passed over by their sums; the one that holds the draw is read number by number.
    for (; start + LANES < count; start += LANES) {
        const double here = total(load(weights + start));
        if (reached + here >= wanted && here > 0) break;
        reached += here;
    }
    for (int64_t at = start; at < count; at++) {
        if (!(weights[at] > 0)) continue;
        found = at;
        reached += weights[at];
        if (reached >= wanted) break;
    }
    // Rounding may pass over the last that can be drawn.
    while (found < 0) found = weights[--start] > 0 ? start : -1;
    *index = found;
    *logp = logits[found] / temperature - top - static_cast<float>(std::log(sum));
}

}  // namespace

extern "C" {

int64_t step_floats(const Plan* plan, int64_t rows, int64_t positions, int64_t threads) {
    return rows * floats_a_row(*plan) + threads * (positions + PANEL);
}

// Reads tokens [n, slots], the first of which is the text's: writes the states that predict the next ones, normed,
// text [n, d] (unless null) and audio [n, d] (unless null). The caller moves the cache on.
void step(const Plan* plan, const Cache* cache, const int64_t* tokens, int64_t n, int64_t slots, float* text, float* audio,
          float* scratch, int64_t threads) {
    const int64_t d = plan->hidden, seen = plan->heads * plan->head_size, width = seen + 2 * plan->kv_heads * plan->head_size;
    const int64_t room = cache->prompt_width + cache->capacity + PANEL;
    share_out(n, threads, [&](int64_t first, int64_t last, int64_t thread) {
        Rows rows{};
        rows.first = first;
        rows.count = last - first;
        rows.scores = scratch + thread * room;
        rows.x = scratch + threads * room + first * floats_a_row(*plan);
        rows.normed = rows.x + rows.count * d;
        float* branch = rows.normed + rows.count * d;
        rows.qkv = branch + rows.count * d;
        rows.seen = rows.qkv + rows.count * width;
        rows.inner = rows.seen + rows.count * seen;
        for (int64_t at = 0; at < rows.count; at++) {
            const int64_t* here = tokens + (first + at) * slots;
            float* x = rows.x + at * d;
            std::fill(x, x + d, 0.0f);
            // The audio's first, as in `embed`.
            for (int64_t slot = 1; slot <= slots; slot++) {
                const float* added = plan->embedding + here[slot % slots] * d;
                for (int64_t value = 0; value < d; value++) x[value] += added[value];
            }
        }
        for (int64_t number = 0; number < plan->shared; number++) run_layer(*plan, *cache, number, rows, rows.x);
        if (audio) {
            std::memcpy(branch, rows.x, rows.count * d * sizeof(float));
            for (int64_t number = 0; number < plan->audio_layers; number++)
                run_layer(*plan, *cache, plan->text_layers + number, rows, branch);
            for (int64_t at = 0; at < rows.count; at++)
                normalise(branch + at * d, plan->audio_norm, d, plan->eps, audio + (first + at) * d);
        }
        if (text) {
            for (int64_t number = plan->shared; number < plan->text_layers; number++)
                run_layer(*plan, *cache, number, rows, rows.x);
            for (int64_t at = 0; at < rows.count; at++)
                normalise(rows.x + at * d, plan->text_norm, d, plan->eps, text + (first + at) * d);
        }
    });
}

int64_t draw_floats(int64_t columns, int64_t threads) { return threads * (DRAWN + 1) * (columns + PANEL); }

// Draws from the logits of states [n, d]: slot k from the `counts[k]` columns from `starts[k]` on, by uniforms [n, slots].
// Writes indices [n, slots], from 0 in each slot, and their log-probs.
void draw(const float* states, int64_t n, int64_t hidden, const float* packed, int64_t columns, const int64_t* starts,
          const int64_t* counts, int64_t slots, float temperature, int64_t top_k, const double* uniforms, int64_t* indices,
          float* logps, float* scratch, int64_t threads) {
    const int64_t room = columns + PANEL;
    share_out(n, threads, [&](int64_t first, int64_t last, int64_t thread) {
        float *logits = scratch + thread * (DRAWN + 1) * room, *weights = logits + DRAWN * room;
        for (; first < last; first += DRAWN) {
            const int64_t rows = std::min<int64_t>(DRAWN, last - first);
            multiply<WRITE>(states + first * hidden, rows, hidden, packed, columns, nullptr, logits, room);
            for (int64_t at = 0; at < rows; at++)
                for (int64_t slot = 0; slot < slots; slot++) {
                    const int64_t here = (first + at) * slots + slot;
                    draw_one(logits + at * room + starts[slot], counts[slot], temperature, top_k,
                             static_cast<float>(uniforms[here]), weights, indices + here, logps + here);
                }
        }
    });
}
}
