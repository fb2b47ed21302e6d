// Decode attention over vLLM's TurboQuant pages, bound by the bytes it reads.
//
// attend: a block takes a part of one request's context, HEADS KV heads of it and ROWS query rows of
// each (query heads that share a KV head, times query tokens). The warps ask in turn for pages, which
// the bulk copy engine brings into a ring, and unpack them in registers into operands of tensor
// cores. Those of a team work on the same tokens of a head: each meets the keys of TOKENS tokens with
// all rows and leaves the weights for the others, then adds all weighted values of the dimensions that
// are its own. So a code is unpacked once, however many rows there are. join: weighs the parts of the
// blocks.
//
// Sizes are macros, set when the source is compiled (launch.py):
//   HEAD_DIM, KEY_BITS, VALUE_BITS, KV_HEADS, GROUP, MOST_TOKENS, PAGE, TOKENS, WARPS, STAGES, ROWS,
//   HEADS, MOST_SPLITS, QUERY_BF16

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
typedef unsigned long long u64;
typedef long long i64;

constexpr int TILES = TOKENS / 8;  // of a tensor core's columns; two are one step over the context
constexpr int ROW_TILES = ROWS / 16;  // of a tensor core's rows
constexpr int ROTATED = KEY_BITS != 8;
constexpr int NORM = HEAD_DIM * KEY_BITS / 8;
constexpr int VALUE = NORM + 2 * ROTATED;
constexpr int SCALE = VALUE + HEAD_DIM * VALUE_BITS / 8;
constexpr int SLOT = (SCALE + 4 + 1) / 2 * 2;
constexpr int TOKEN = KV_HEADS * SLOT;
constexpr int GROUPS = HEAD_DIM / 64;  // of 64 dimensions: what a row of a tile's columns spans
constexpr int WARPS_OF_HEAD = WARPS / HEADS;
constexpr int TEAM = WARPS_OF_HEAD < GROUPS ? WARPS_OF_HEAD : GROUPS;
constexpr int TEAMS = WARPS_OF_HEAD / TEAM;  // of a head, each with tokens of its own
constexpr int OWN = GROUPS / TEAM;  // groups of dimensions that are a warp's
constexpr int STAGE_TOKENS = TOKENS * WARPS_OF_HEAD;
constexpr int LAG = STAGES > 2 ? 2 : 1;
constexpr int STAGE_BYTES = STAGE_TOKENS * TOKEN;
constexpr int PIECE = PAGE < STAGE_TOKENS ? PAGE : STAGE_TOKENS;
constexpr int ALL_ROWS = MOST_TOKENS * GROUP;
constexpr int HELD_ROWS = ALL_ROWS < ROWS ? ALL_ROWS : ROWS;
constexpr int PAIRS = HELD_ROWS < 8 ? HELD_ROWS : 8;
// Rows g and g + 8 lie together, as a tensor core's operand wants them; 16 bytes more keep two such
// pairs on different banks.
constexpr int QUERY_PAIR = HEAD_DIM * 4 + 16;
constexpr int ALL_PAIRS = HEADS * ROW_TILES * PAIRS;
constexpr int QUERY_BYTES = ALL_PAIRS * QUERY_PAIR;
constexpr int WEIGHT_BYTES = STAGE_TOKENS / 16 * HEADS * ROW_TILES * 512;
constexpr int WORDS = HEAD_DIM / 8;  // of eight codes each
constexpr int STEPS = WORDS / 4;  // words of a lane: lane t of four has words t STEPS and on
constexpr int PER_LANE = HEAD_DIM / 32;
constexpr float ROOT_OF_DIM = HEAD_DIM == 256 ? 16.f : HEAD_DIM == 128 ? 11.3137085f : 8.f;
constexpr float QUERY_SCALE = 16384.f;
constexpr float WEIGHT_SCALE = 32768.f;
constexpr float VALUE_SCALE = 16777216.f;  // 2^24: a code in an FP16's lowest bits is that small
constexpr float LEAST_SCALE = 5.9604645e-08f;  // 2^-24, FP16's least
constexpr float LEAST_NORMAL = 6.1035156e-05f;  // 2^-14: below it FP16 has fewer bits
#define MINUS_INFINITY __int_as_float(0xff800000)
#define INLINE __device__ __forceinline__

INLINE float from_half(u16 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
INLINE u32 two_halves(float low, float high) {
  u32 both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
INLINE float low_half(u32 both) { return from_half((u16)both); }
INLINE float high_half(u32 both) { return from_half((u16)(both >> 16)); }
INLINE float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
INLINE float log2_of(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
INLINE float query_element(u16 bits) {
#if QUERY_BF16
  return __uint_as_float((u32)bits << 16);
#else
  return from_half(bits);
#endif
}
INLINE u16 query_bits(float value) {
  u16 bits;
#if QUERY_BF16
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#endif
  return bits;
}
INLINE u32 permuted(u32 a, u32 b, u32 selector) {
  u32 out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(selector));
  return out;
}
INLINE u32 squared(u32 a) {
  u32 out;
  asm("mul.rn.f16x2 %0, %1, %1;" : "=r"(out) : "r"(a));
  return out;
}
INLINE u32 plus_squared(u32 a, u32 sum) {
  u32 out;
  asm("fma.rn.f16x2 %0, %1, %1, %2;" : "=r"(out) : "r"(a), "r"(sum));
  return out;
}
INLINE void multiply(float (&sum)[4], uint4 a, u32 b0, u32 b1) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// Barriers of shared memory, counted in phases.
INLINE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }
INLINE void barrier_init(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
INLINE void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
INLINE void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
INLINE void barrier_wait(u32 barrier, u32 phase) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier), "r"(phase)
      : "memory");
}
// Of the warps of a team, which is one of fifteen.
INLINE void team_barrier(int team, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(threads) : "memory");
}
INLINE void copy_bulk(u32 target, const u8* source, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      ::"r"(target), "l"(source), "r"(bytes), "r"(barrier) : "memory");
}

// Eight codes as a word, from where they lie; slots are aligned to two bytes.
INLINE u32 halves(const u8* at) {
  return (u32) * (const u16*)at | ((u32) * (const u16*)(at + 2) << 16);
}
template <int BITS, bool ALIGNED>
INLINE u32 word_of(const u8* codes, int word) {
  if (BITS == 4) return ALIGNED ? *(const u32*)(codes + 4 * word) : halves(codes + 4 * word);
  return halves(codes + (3 * word & ~1)) >> (8 * (word & 1)) & 0xFFFFFF;
}

// Four pairs of FP16: the centroids of eight codes. The magnitudes' bytes are looked up four at a
// time; a 4-bit code below 8 is negative and counts them downwards.
// Bytes of FP16 centroids.
struct Table {
  u32 high[2], low[2];
};
INLINE void merge(u32 high, u32 low, u32& first, u32& second) {
  first = permuted(low, high, 0x5140);
  second = permuted(low, high, 0x7362);
}
INLINE void centroids_4(const Table& table, u32 word, u32 (&pair)[4]) {
  u32 sign = ~word & 0x88888888u;
  u32 at = (word ^ (sign - (sign >> 3))) & 0x77777777u;
  u32 up = sign << 4;
  u32 high = permuted(table.high[0], table.high[1], at) ^ (permuted(sign, up, 0x1504) & 0x80808080u);
  merge(high, permuted(table.low[0], table.low[1], at), pair[0], pair[1]);
  at >>= 16;
  high = permuted(table.high[0], table.high[1], at) ^ (permuted(sign, up, 0x3726) & 0x80808080u);
  merge(high, permuted(table.low[0], table.low[1], at), pair[2], pair[3]);
}
INLINE void centroids_3(const Table& table, u32 word, u32 (&pair)[4]) {
  u32 at = (word & 0x00000FFFu) | (word << 4 & 0x0FFF0000u);
  at = (at & 0x003F003Fu) | (at << 2 & 0x3F003F00u);
  at = (at & 0x07070707u) | (at << 1 & 0x70707070u);
  merge(permuted(table.high[0], table.high[1], at), permuted(table.low[0], table.low[1], at), pair[0], pair[1]);
  at >>= 16;
  merge(permuted(table.high[0], table.high[1], at), permuted(table.low[0], table.low[1], at), pair[2], pair[3]);
}
INLINE void floats_8(u32 word, u32& first, u32& second) {
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(first) : "h"((u16)word));
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(second) : "h"((u16)(word >> 16)));
}
// Dimensions 8 word to 8 word + 7 of a key, as pairs.
INLINE void key_pairs(const Table& table, const u8* slot, int word, u32 (&pair)[4]) {
  if (KEY_BITS == 8) {
    floats_8(*(const u32*)(slot + 8 * word), pair[0], pair[1]);
    floats_8(*(const u32*)(slot + 8 * word + 4), pair[2], pair[3]);
    return;
  }
  u32 codes = word_of<KEY_BITS, SLOT % 4 == 0>(slot, word);
  if (KEY_BITS == 4) centroids_4(table, codes, pair);
  if (KEY_BITS == 3) centroids_3(table, codes, pair);
}
// Eight pairs of FP16 from the words of two tokens: code times a power of two (`lies`), for the
// bits stay where they are in the mantissa.
INLINE void value_pairs(u32 first, u32 second, u32 (&pair)[8]) {
  u32 low = permuted(first, second, 0x5410);
  if (VALUE_BITS == 4) {
    u32 high = permuted(first, second, 0x7632);
    pair[0] = low & 0x000F000Fu;
    pair[1] = low & 0x00F000F0u;
    pair[2] = low >> 8 & 0x000F000Fu;
    pair[3] = low >> 8 & 0x00F000F0u;
    pair[4] = high & 0x000F000Fu;
    pair[5] = high & 0x00F000F0u;
    pair[6] = high >> 8 & 0x000F000Fu;
    pair[7] = high >> 8 & 0x00F000F0u;
  } else {
    u32 last = permuted(first, second, 0x6521);
    pair[0] = low & 0x00070007u;
    pair[1] = low & 0x00380038u;
    pair[2] = low & 0x01C001C0u;
    pair[3] = low >> 9 & 0x00070007u;
    pair[4] = low >> 9 & 0x00380038u;
    pair[5] = last & 0x03800380u;
    pair[6] = last >> 10 & 0x00070007u;
    pair[7] = last >> 10 & 0x00380038u;
  }
}
INLINE float lies(int plane) {
  if (VALUE_BITS == 4) return plane % 2 ? 16.f : 1.f;
  return plane == 2 ? 64.f : plane == 5 ? 128.f : plane % 3 == 1 ? 8.f : 1.f;
}

// Few squares are added in FP16: its rounding averages out over a key's dimensions.
INLINE float sum_of_squares(const u32 (&pair)[4]) {
  constexpr int ADDED = HEAD_DIM >= 256 ? 4 : 2;
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < 4; i += ADDED) {
    u32 some = squared(pair[i]);
    for (int k = 1; k < ADDED; k++) some = plus_squared(pair[i + k], some);
    sum += low_half(some) + high_half(some);
  }
  return sum;
}

// Scores of all rows and a chunk, and the squares of what the keys are. Where there are few products
// the halves of each step have sums of their own: four chains instead of two.
constexpr int CHAINS = TILES * ROW_TILES > 2 ? 1 : 2;
INLINE void multiply_keys(const Table& table, const u8* operand, const u8* slots,
                          float (&score)[ROW_TILES][CHAINS][TILES][4], float (&squares)[TILES]) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int j = 0; j < STEPS; j++) {
    uint4 a[ROW_TILES], b[ROW_TILES];
#pragma unroll
    for (int rows = 0; rows < ROW_TILES; rows++) {
      a[rows] = *(const uint4*)(operand + rows * PAIRS * QUERY_PAIR + 128 * j);
      b[rows] = *(const uint4*)(operand + rows * PAIRS * QUERY_PAIR + 128 * j + 16);
    }
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      u32 key[4];
      key_pairs(table, slots + (tile * 8 + g) * TOKEN, t * STEPS + j, key);
      if (ROTATED) squares[tile] += sum_of_squares(key);
#pragma unroll
      for (int rows = 0; rows < ROW_TILES; rows++) {
        multiply(score[rows][0][tile], a[rows], key[0], key[1]);
        multiply(score[rows][CHAINS - 1][tile], b[rows], key[2], key[3]);
      }
    }
  }
}

// Adds 16 tokens' weighted values to the result: column g of a tile is word 8 j + g, one tile for
// each of its eight codes.
INLINE void multiply_values(const u8* values, const uint4* weights, int first_group,
                            float (&result)[OWN][ROW_TILES][8][4]) {
  const int lane = threadIdx.x % 32, g = lane / 4;
  uint4 weight[ROW_TILES];
#pragma unroll
  for (int rows = 0; rows < ROW_TILES; rows++) weight[rows] = weights[rows * 32 + lane];
#pragma unroll
  for (int j = 0; j < OWN; j++) {
    u32 word[4], first[8], second[8];
#pragma unroll
    for (int i = 0; i < 4; i++)
      word[i] = word_of<VALUE_BITS, SLOT % 4 == 0 && VALUE % 4 == 0>(
          values + (i % 2 + i / 2 * 8) * TOKEN, 8 * (first_group + j) + g);
    value_pairs(word[0], word[1], first);
    value_pairs(word[2], word[3], second);
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
      for (int rows = 0; rows < ROW_TILES; rows++)
        multiply(result[j][rows][i], weight[rows], first[i], second[i]);
  }
}

INLINE int part_of(int length, int splits) {
  int share = (length + splits - 1) / splits;
  return (share + STAGE_TOKENS - 1) / STAGE_TOKENS * STAGE_TOKENS;
}
INLINE int row_token(int row) { return row / GROUP; }

INLINE void load_row(const u16* query, bool is_row, u16 (&bits)[PER_LANE]) {
  const int lane = threadIdx.x % 32;
  uint4 loaded = {0, 0, 0, 0};
  if (is_row) {
    if (PER_LANE == 8) loaded = ((const uint4*)query)[lane];
    if (PER_LANE == 4) *(uint2*)&loaded = ((const uint2*)query)[lane];
    if (PER_LANE == 2) loaded.x = ((const u32*)query)[lane];
  }
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) bits[i] = ((const u32*)&loaded)[i / 2] >> (i % 2 * 16);
}

// Rows `pair` and 8 further of the block's queries; zeros where there are none.
INLINE void load_pair(const u16* query, i64 query_token, i64 query_head, int pair, int row_block,
                      int first_head, int first, int count, u16 (&bits)[2][PER_LANE]) {
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int all = row_block + pair / PAIRS % ROW_TILES * 16 + pair % PAIRS + 8 * k;
    const bool is_row = pair < ALL_PAIRS && all < ALL_ROWS && row_token(all) < count;
    load_row(query + (first + row_token(all)) * query_token
                 + ((first_head + pair / (ROW_TILES * PAIRS)) * GROUP + all % GROUP) * query_head,
             is_row, bits[k]);
  }
}

// Rotate two queries (where keys are) and give them a length that FP16 holds; `length` is what they
// had.
INLINE void prepare_rows(const u16 (&bits)[2][PER_LANE], float (&x)[2][PER_LANE],
                         float (&length)[2]) {
  const int lane = threadIdx.x % 32;
  float sum[2] = {0.f, 0.f};
#pragma unroll
  for (int k = 0; k < 2; k++)
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
      x[k][i] = query_element(bits[k][i]);
      sum[k] += x[k][i] * x[k][i];
    }
#pragma unroll
  for (int bit = 16; bit; bit /= 2)
#pragma unroll
    for (int k = 0; k < 2; k++) sum[k] += __shfl_xor_sync(~0u, sum[k], bit);
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const float inverse = rsqrtf(fmaxf(sum[k], 1e-30f));
    length[k] = sum[k] * inverse;
    const float stretch = inverse * (QUERY_SCALE / (ROTATED ? ROOT_OF_DIM : 1.f));
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) x[k][i] *= stretch;
    if (ROTATED)
#pragma unroll
      for (int bit = 1; bit < PER_LANE; bit *= 2)
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
          if (!(i & bit)) {
            const float a = x[k][i], b = x[k][i | bit];
            x[k][i] = a + b;
            x[k][i | bit] = a - b;
          }
  }
  if (ROTATED)
#pragma unroll 1  // a block runs this a few times: shorter code is there sooner
    for (int bit = 1; bit < 32; bit *= 2)
#pragma unroll
      for (int k = 0; k < 2; k++)
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
          const float other = __shfl_xor_sync(~0u, x[k][i], bit);
          x[k][i] = lane & bit ? other - x[k][i] : x[k][i] + other;
        }
}

// Two rows that a tensor core wants side by side, to shared memory.
INLINE void store_pair(const float (&x)[PER_LANE], const float (&y)[PER_LANE], u8* target) {
  const int lane = threadIdx.x % 32;
  u32 both[PER_LANE];
#pragma unroll
  for (int i = 0; i < PER_LANE; i += 2) {
    both[i] = two_halves(x[i], x[i + 1]);
    both[i + 1] = two_halves(y[i], y[i + 1]);
  }
  const int word = lane * PER_LANE / 8;
  u8* at = target + (word % STEPS * 4 + word / STEPS) * 32 + lane * PER_LANE % 8 * 4;
  if (PER_LANE == 2) {
    *(uint2*)at = make_uint2(both[0], both[1]);
  } else {
#pragma unroll
    for (int i = 0; i < PER_LANE; i += 4)
      *(uint4*)(at + 4 * i) = make_uint4(both[i], both[i + 1], both[i + 2], both[i + 3]);
  }
}

// One warp asks for the pages of a round; tokens past `end` come along where their page does.
INLINE void copy_round(int round, int begin, int end, const u8* pages, i64 page_stride,
                       const int* table, u8* ring, u64* full) {
  const int lane = threadIdx.x % 32, stage = round % STAGES;
  const int start = begin + round * STAGE_TOKENS;
  const int pieces = (min(STAGE_TOKENS, end - start) + PIECE - 1) / PIECE;
  const u32 barrier = shared_address(&full[stage]);
  if (lane == 0) barrier_expect(barrier, pieces * PIECE * TOKEN);
  __syncwarp();
  if (lane < pieces) {
    const int token = start + lane * PIECE;
    const u8* source = pages + table[token / PAGE] * page_stride + token % PAGE * TOKEN;
    copy_bulk(shared_address(ring) + stage * STAGE_BYTES + lane * PIECE * TOKEN, source,
              PIECE * TOKEN, barrier);
  }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1)
attend(const u16* __restrict__ query, i64 query_token, i64 query_head, const u8* __restrict__ pages,
       i64 page_stride, const int* __restrict__ table, i64 table_stride,
       const int* __restrict__ lengths, const int* __restrict__ starts, float* __restrict__ parts,
       float* __restrict__ sums, float score, u32 high_0, u32 high_1, u32 low_0, u32 low_1) {
  const Table centroids = {{high_0, high_1}, {low_0, low_1}};
  extern __shared__ __align__(128) u8 memory[];
  __shared__ __align__(8) u64 full[STAGES], empty[STAGES];
  __shared__ float factors[HEADS * ROWS];
  __shared__ float mosts[WARPS][ROWS];
  u8* queries = memory;
  uint4* all_weights = (uint4*)(memory + (QUERY_BYTES + 127) / 128 * 128);
  u8* ring = (u8*)all_weights + WEIGHT_BYTES;
  asm volatile("griddepcontrol.launch_dependents;");  // join may be brought to the card
  const int request = blockIdx.x, split = blockIdx.z;
  const int row_block = blockIdx.y / (KV_HEADS / HEADS) * ROWS;
  const int first_head = blockIdx.y % (KV_HEADS / HEADS) * HEADS;
  const int splits = gridDim.z;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first = starts[request], count = starts[request + 1] - first;
  const int length = lengths[request];
  const int part = part_of(length, splits);
  const int begin = split * part;
  const int end = min(begin + part, length);
  if (begin >= end || count <= row_token(row_block)) return;
  const int rounds = (end - begin + STAGE_TOKENS - 1) / STAGE_TOKENS;

  // The first queries are asked for first: behind the pages they would wait for all of them.
  u16 bits[2][PER_LANE];
  load_pair(query, query_token, query_head, warp, row_block, first_head, first, count, bits);
  if (warp < STAGES) {  // each of these warps sees to a stage's first round
    if (lane == 0) {
      barrier_init(shared_address(&full[warp]), 1);
      barrier_init(shared_address(&empty[warp]), WARPS);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    if (warp < rounds)
      copy_round(warp, begin, end, pages, page_stride, table + request * table_stride, ring, full);
  }
#pragma unroll 1
  for (int pair = warp; pair < ALL_PAIRS; pair += WARPS) {
    float x[2][PER_LANE], length_of[2];
    prepare_rows(bits, x, length_of);
    load_pair(query, query_token, query_head, pair + WARPS, row_block, first_head, first, count,
              bits);
    store_pair(x[0], x[1], queries + pair * QUERY_PAIR);
    if (lane < 2)
      factors[pair / PAIRS * 16 + pair % PAIRS + 8 * lane] =
          (lane ? length_of[1] : length_of[0]) * (score / QUERY_SCALE);
  }
  __syncthreads();

  const int head = warp / WARPS_OF_HEAD, g = lane / 4, t = lane % 4;
  const int team = warp / TEAM, member = warp % TEAM;
  float result[OWN][ROW_TILES][8][4];
#pragma unroll
  for (int i = 0; i < OWN * ROW_TILES * 32; i++) (&result[0][0][0][0])[i] = 0.f;
  float most[ROW_TILES][2], total[ROW_TILES][2], shift[ROW_TILES][2], factor[ROW_TILES][2];
  int seen[ROW_TILES][2];
  const int pair = min(g, PAIRS - 1);
  const u8* operand = queries + (head * ROW_TILES * PAIRS + pair) * QUERY_PAIR + t * 32;
#pragma unroll
  for (int rows = 0; rows < ROW_TILES; rows++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int row = rows * 16 + pair + 8 * i;
      most[rows][i] = MINUS_INFINITY;
      total[rows][i] = shift[rows][i] = 0.f;
      factor[rows][i] = factors[head * ROWS + row];
      seen[rows][i] = min(end, length - count + 1 + row_token(row_block + row));
    }
  const int least_seen = min(end, length - count + 1 + row_token(row_block));
  // Of a team: 16 tokens after 16 tokens, each with the left operands of all rows.
  uint4* weights = all_weights + team * (TEAM * TOKENS / 16) * ROW_TILES * 32;
  for (int round = 0; round < rounds; round++) {
    const int stage = round % STAGES;
    const int shared = begin + round * STAGE_TOKENS + warp % WARPS_OF_HEAD / TEAM * TEAM * TOKENS;
    const int chunk = shared + member * TOKENS;
    // A stage that all have left is filled again, by the warps in turn.
    const int next = round - LAG + STAGES;
    if (round >= LAG && next < rounds && warp == round % WARPS) {
      barrier_wait(shared_address(&empty[next % STAGES]), (next / STAGES - 1) & 1);
      copy_round(next, begin, end, pages, page_stride, table + request * table_stride, ring, full);
    }
    barrier_wait(shared_address(&full[stage]), round / STAGES & 1);
    if (shared < end) {
      const u8* team_slots = ring + stage * STAGE_BYTES
                             + warp % WARPS_OF_HEAD / TEAM * TEAM * TOKENS * TOKEN
                             + (first_head + head) * SLOT;
      const u8* slots = team_slots + member * TOKENS * TOKEN;
      // A lane has rows g and g + 8 of each sixteen and, of each tile, tokens 2 t and 2 t + 1.
      float scores[ROW_TILES][CHAINS][TILES][4] = {};
      float value_scale[2 * TILES], value_zero[2 * TILES], inverse[2 * TILES];
      float higher[ROW_TILES][2];
#pragma unroll
      for (int rows = 0; rows < ROW_TILES; rows++) higher[rows][0] = higher[rows][1] = MINUS_INFINITY;
      if (chunk < end) {
        float squares[TILES] = {};
        multiply_keys(centroids, operand, slots, scores, squares);
        float key_factor[TILES];
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
          key_factor[tile] = 1.f;
          if (ROTATED) {
            float sum = squares[tile];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            const float norm = from_half(*(const u16*)(slots + (tile * 8 + g) * TOKEN + NORM));
            key_factor[tile] = norm * rsqrtf(sum);
          }
        }
        const bool is_edge = chunk + TOKENS > least_seen;
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++) {
          const int token = i / 2 * 8 + 2 * t + i % 2;
          const u8* scalars = slots + token * TOKEN + SCALE;
          value_scale[i] = from_half(*(const u16*)scalars);
          value_zero[i] = from_half(*(const u16*)(scalars + 2));
          if (is_edge && chunk + token >= end) value_scale[i] = value_zero[i] = 0.f;
          const float key = ROTATED ? __shfl_sync(~0u, key_factor[i / 2], (2 * t + i % 2) * 4) : 1.f;
          // The largest weight times scale becomes one, so that FP16 holds them whatever the scale.
          const float magnitude = log2_of(fmaxf(value_scale[i], LEAST_SCALE));
          inverse[i] = exp2_of(-magnitude) / WEIGHT_SCALE;
#pragma unroll
          for (int rows = 0; rows < ROW_TILES; rows++)
#pragma unroll
            for (int row = 0; row < 2; row++) {
              float& s = scores[rows][0][i / 2][row * 2 + i % 2];
              if (CHAINS == 2) s += scores[rows][CHAINS - 1][i / 2][row * 2 + i % 2];
              s *= factor[rows][row] * key;
              if (is_edge && chunk + token >= seen[rows][row]) s = MINUS_INFINITY;
              higher[rows][row] = fmaxf(higher[rows][row], s + magnitude);
            }
        }
      }
#pragma unroll
      for (int rows = 0; rows < ROW_TILES; rows++)
#pragma unroll
        for (int row = 0; row < 2; row++) {
          float& own = higher[rows][row];
          own = fmaxf(own, __shfl_xor_sync(~0u, own, 1));
          own = fmaxf(own, __shfl_xor_sync(~0u, own, 2));
          if (TEAM > 1 && t == 0) mosts[warp][rows * 16 + g + 8 * row] = own;
        }
      if (TEAM > 1) team_barrier(team, TEAM * 32);
      float base[ROW_TILES][2];
      bool has_grown = false;
#pragma unroll
      for (int rows = 0; rows < ROW_TILES; rows++)
#pragma unroll
        for (int row = 0; row < 2; row++) {
          float top = fmaxf(most[rows][row], higher[rows][row]);
          if (TEAM > 1)
#pragma unroll
            for (int other = 0; other < TEAM; other++)
              top = fmaxf(top, mosts[team * TEAM + other][rows * 16 + g + 8 * row]);
          base[rows][row] = top == MINUS_INFINITY ? 0.f : top;
          const float shrink = exp2_of(most[rows][row] - base[rows][row]);
          has_grown = has_grown || shrink != 1.f;
          higher[rows][row] = shrink;
          most[rows][row] = top;
          total[rows][row] *= shrink;
          shift[rows][row] *= shrink;
        }
      if (__any_sync(~0u, has_grown))
#pragma unroll
        for (int j = 0; j < OWN; j++)
#pragma unroll
          for (int rows = 0; rows < ROW_TILES; rows++)
#pragma unroll
            for (int i = 0; i < 32; i++) result[j][rows][i / 4][i % 4] *= higher[rows][i % 4 / 2];
      if (chunk < end)
#pragma unroll
        for (int step = 0; step < TILES / 2; step++)
#pragma unroll
          for (int rows = 0; rows < ROW_TILES; rows++) {
            u32 weight[4];
#pragma unroll
            for (int part = 0; part < 4; part++) {
              const int tile = step * 2 + part / 2, row = part % 2;
              float one[2];
#pragma unroll
              for (int i = 0; i < 2; i++)
                one[i] = exp2_of(scores[rows][0][tile][row * 2 + i] - base[rows][row]);
              weight[part] = two_halves(one[0] * (value_scale[tile * 2] * WEIGHT_SCALE),
                                        one[1] * (value_scale[tile * 2 + 1] * WEIGHT_SCALE));
              // What the products weigh by, rounded, is what is counted as well: over many equal
              // weights one rounding would not average out.
#pragma unroll
              for (int i = 0; i < 2; i++) {
                const float rounded = i ? high_half(weight[part]) : low_half(weight[part]);
                if (rounded >= LEAST_NORMAL) one[i] = rounded * inverse[tile * 2 + i];
                total[rows][row] += one[i];
                shift[rows][row] += one[i] * value_zero[tile * 2 + i];
              }
            }
            weights[((member * (TILES / 2) + step) * ROW_TILES + rows) * 32 + lane] =
                make_uint4(weight[0], weight[1], weight[2], weight[3]);
          }
      if (TEAM > 1) team_barrier(team, TEAM * 32);
      const int steps = min(TEAM * TOKENS, end - shared + 15) / 16;
#pragma unroll 1
      for (int step = 0; step < steps; step++)
        multiply_values(team_slots + (step * 16 + 2 * t) * TOKEN + VALUE,
                        weights + step * ROW_TILES * 32, member * OWN, result);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&empty[stage]));
  }
  __syncthreads();
  // Where weights were: what each warp has to say of its rows.
  float(*totals)[ROWS] = (float(*)[ROWS])all_weights;
  float(*shifts)[ROWS] = totals + WARPS;
#pragma unroll
  for (int rows = 0; rows < ROW_TILES; rows++)
#pragma unroll
    for (int row = 0; row < 2; row++) {
      for (int bit = 1; bit < 4; bit *= 2) {
        total[rows][row] += __shfl_xor_sync(~0u, total[rows][row], bit);
        shift[rows][row] += __shfl_xor_sync(~0u, shift[rows][row], bit);
      }
      if (t == 0) {
        mosts[warp][rows * 16 + g + 8 * row] = most[rows][row];
        totals[warp][rows * 16 + g + 8 * row] = total[rows][row];
        shifts[warp][rows * 16 + g + 8 * row] = shift[rows][row];
      }
    }
  __syncthreads();

  // Join the warps of a head: first what each weighs, then, through the ring, what teams have.
  const i64 part_stride = (i64)splits * HEAD_DIM;
  float scale[ROW_TILES][2], moved[ROW_TILES][2];
  float* out[ROW_TILES][2];
#pragma unroll
  for (int rows = 0; rows < ROW_TILES; rows++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int row = rows * 16 + g + 8 * i, all = row_block + row, from = head * WARPS_OF_HEAD;
      float top = MINUS_INFINITY, weight = 0.f, all_moved = 0.f;
      for (int w = 0; w < WARPS_OF_HEAD; w++) top = fmaxf(top, mosts[from + w][row]);
      const float base = top == MINUS_INFINITY ? 0.f : top;
      for (int w = 0; w < WARPS_OF_HEAD; w++) {
        const float share = exp2_of(mosts[from + w][row] - base);
        weight += totals[from + w][row] * share;
        all_moved += shifts[from + w][row] * share;
      }
      const float inverse = weight == 0.f ? 0.f : 1.f / weight;
      scale[rows][i] = exp2_of(most[rows][i] - base) * inverse * (VALUE_SCALE / WEIGHT_SCALE);
      moved[rows][i] = all_moved * inverse;
      const bool is_row = row < HELD_ROWS && all < ALL_ROWS && row_token(all) < count;
      const i64 place = (i64)(first + row_token(all)) * (KV_HEADS * GROUP)
                        + (first_head + head) * GROUP + all % GROUP;
      out[rows][i] = is_row ? parts + place * part_stride + split * HEAD_DIM : nullptr;
      if (is_row && warp == from && t == 0)
        sums[place * splits + split] = weight == 0.f ? MINUS_INFINITY : base + log2_of(weight);
    }
  float* joined = (float*)ring + lane;
#pragma unroll
  for (int j = 0; j < OWN; j++)
#pragma unroll
    for (int rows = 0; rows < ROW_TILES; rows++)
#pragma unroll
      for (int i = 0; i < 32; i++) {
        float& value = result[j][rows][i / 4][i % 4];
        value *= scale[rows][i % 4 / 2] / lies(i / 4);
        if (TEAMS > 1 && warp % WARPS_OF_HEAD >= TEAM)
          joined[(((head * (TEAMS - 1) + warp % WARPS_OF_HEAD / TEAM - 1) * TEAM + member)
                  * OWN * ROW_TILES * 32 + (j * ROW_TILES + rows) * 32 + i) * 32] = value;
      }
  if (TEAMS > 1) {
    __syncthreads();
    if (warp % WARPS_OF_HEAD >= TEAM) return;
#pragma unroll
    for (int i = 0; i < OWN * ROW_TILES * 32; i++)
      for (int other = 0; other < TEAMS - 1; other++)
        (&result[0][0][0][0])[i] += joined[(((head * (TEAMS - 1) + other) * TEAM + member)
                                            * OWN * ROW_TILES * 32 + i) * 32];
  }
  // A lane has two words of eight dimensions of each row and group.
#pragma unroll
  for (int j = 0; j < OWN; j++)
#pragma unroll
    for (int rows = 0; rows < ROW_TILES; rows++)
#pragma unroll
      for (int k = 0; k < 4; k++) {
        if (out[rows][k / 2] == nullptr) continue;
        float4* target = (float4*)(out[rows][k / 2] + ((member * OWN + j) * 8 + 2 * t + k % 2) * 8);
        const float (&values)[8][4] = result[j][rows];
        const float shifted = moved[rows][k / 2];
#pragma unroll
        for (int i = 0; i < 8; i += 4)
          target[i / 4] = make_float4(values[i][k] + shifted, values[i + 1][k] + shifted,
                                      values[i + 2][k] + shifted, values[i + 3][k] + shifted);
      }
}

// A block joins 64 dimensions of a query head; each of its eight groups of threads takes every
// eighth part, and asks for the first of them before it knows what they weigh.
constexpr int JOIN_GROUPS = 8;
constexpr int ASKED = 16;

extern "C" __global__ void __launch_bounds__(64 * JOIN_GROUPS)
join(const float* __restrict__ parts, const float* __restrict__ sums,
     const int* __restrict__ lengths, const int* __restrict__ starts, u16* __restrict__ out,
     i64 out_token, i64 out_head, int splits) {
  __shared__ float weights[MOST_SPLITS];
  __shared__ float partial[JOIN_GROUPS][64];
  __shared__ float whole;
  const int request = blockIdx.x, heads = KV_HEADS * GROUP;
  const int token = starts[request] + blockIdx.y / heads, head = blockIdx.y % heads;
  const int length = lengths[request];
  if (token >= starts[request + 1] || length <= 0) return;
  const int part = part_of(length, splits), used = (length + part - 1) / part;
  const i64 place = ((i64)token * heads + head) * splits;
  const int column = threadIdx.x % 64, group = threadIdx.x / 64;
  const float* source = parts + place * HEAD_DIM + blockIdx.z * 64 + column;
  asm volatile("griddepcontrol.wait;" ::: "memory");  // for what attend wrote
  float asked[ASKED];
#pragma unroll
  for (int i = 0; i < ASKED; i++) {
    const int s = group + i * JOIN_GROUPS;
    asked[i] = s < used ? source[(i64)s * HEAD_DIM] : 0.f;
  }
  if (threadIdx.x < 32) {
    constexpr int PER_THREAD = MOST_SPLITS / 32;
    float own[PER_THREAD], top = MINUS_INFINITY, total = 0.f;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
      const int s = threadIdx.x + 32 * i;
      own[i] = s < used ? sums[place + s] : MINUS_INFINITY;
      top = fmaxf(top, own[i]);
    }
    for (int bit = 16; bit; bit /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, bit));
    top = top == MINUS_INFINITY ? 0.f : top;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
      const float weight = exp2_of(own[i] - top);
      weights[threadIdx.x + 32 * i] = weight;
      total += weight;
    }
    for (int bit = 16; bit; bit /= 2) total += __shfl_xor_sync(~0u, total, bit);
    if (threadIdx.x == 0) whole = total;
  }
  __syncthreads();
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < ASKED; i++)
    if (group + i * JOIN_GROUPS < used) sum += weights[group + i * JOIN_GROUPS] * asked[i];
  for (int s = group + ASKED * JOIN_GROUPS; s < used; s += JOIN_GROUPS)
    sum += weights[s] * source[(i64)s * HEAD_DIM];
  partial[group][column] = sum;
  __syncthreads();
  if (group == 0) {
    for (int other = 1; other < JOIN_GROUPS; other++) sum += partial[other][column];
    out[token * out_token + head * out_head + blockIdx.z * 64 + column] = query_bits(whole == 0.f ? 0.f : sum / whole);
  }
}
