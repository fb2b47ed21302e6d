// A CUDA card of one multiprocessor, in ordinary C++: what the decode kernel's source needs of it.
//
// Threads are fibers that one scheduler resumes in a random order, a warp at a time. Bulk copies land
// whenever a die says so, in any order. What waits for ever, copies to where it may not, or arrives
// once too often at a barrier is a fault, and ends the launch. `cuda_on_cpu.py` leaves out of the
// source every function that is written in PTX; this file has another of the same name.
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <string>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static  // blocks run one after another

struct Index {
  unsigned x, y, z;
};
struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static Index threadIdx, blockIdx, gridDim;
alignas(1024) static unsigned char dynamic_memory[227 * 1024];
static size_t dynamic_bytes;

static float __uint_as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static float __int_as_float(int bits) { return __uint_as_float(bits); }
static unsigned bits_of(float value) {
  unsigned bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
static float rsqrtf(float x) { return 1.f / sqrtf(x); }
static int min(int a, int b) { return a < b ? a : b; }
static int max(int a, int b) { return a > b ? a : b; }

// Threads, and what those of a warp tell each other.
struct Word {
  unsigned part[6];
};
struct Warp {
  int arrived = 0, meetings = 0;
  Word words[2][32];
};
struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(64 * 1024);
  bool has_ended = false;
};
static std::vector<Fiber> fibers;
static std::vector<Warp> warps;
static ucontext_t scheduler;
static std::function<void()> body;
static int current, alive, block_arrived, block_meetings;
static long events;  // anything that may let another thread go on
static std::string fault;

static void give_way() { swapcontext(&fibers[current].context, &scheduler); }
[[noreturn]] static void fail(const std::string& what) {
  if (fault.empty()) fault = what;
  for (;;) give_way();
}

// Every lane has what all brought. Two meetings' words are kept: the slowest lane reads those of one
// while the fastest writes for the next.
static const Word* meet(const Word& mine) {
  Warp& warp = warps[current / 32];
  const int meeting = warp.meetings;
  Word* words = warp.words[meeting % 2];
  words[current % 32] = mine;
  if (++warp.arrived == 32) {
    warp.arrived = 0, warp.meetings++, events++;
  } else {
    while (warp.meetings == meeting) give_way();
  }
  return words;
}
static void open_block_meeting() { block_arrived = 0, block_meetings++, events++; }
static void __syncthreads() {
  const int meeting = block_meetings;
  if (++block_arrived == alive) open_block_meeting();
  while (block_meetings == meeting) give_way();
}
static void __syncwarp() { meet({}); }

// A barrier of some warps, by its number.
static int team_arrived[16], team_meetings[16];
static void team_barrier(int team, int threads) {
  const int meeting = team_meetings[team];
  if (++team_arrived[team] == threads) team_arrived[team] = 0, team_meetings[team]++, events++;
  while (team_meetings[team] == meeting) give_way();
}
static float __shfl_sync(unsigned, float value, int lane) {
  return __uint_as_float(meet({bits_of(value)})[lane].part[0]);
}
static float __shfl_xor_sync(unsigned mask, float value, int bit) {
  return __shfl_sync(mask, value, current % 32 ^ bit);
}
static bool __any_sync(unsigned, bool value) {
  const Word* words = meet({value});
  bool any = false;
  for (int lane = 0; lane < 32; lane++) any |= words[lane].part[0];
  return any;
}

// Barriers of shared memory; an address counts from where dynamic memory begins.
struct Barrier {
  int8_t phase, expected;
  int16_t awaited;
  int32_t bytes;
};
static_assert(sizeof(Barrier) == 8, "as the card's");
struct Copy {
  unsigned target, bytes, barrier;
  const unsigned char* source;
};
static std::vector<Copy> copies;

static unsigned __cvta_generic_to_shared(const void* at) {
  return (const unsigned char*)at - dynamic_memory;
}
static volatile Barrier& barrier_at(unsigned address) {
  return *(volatile Barrier*)(dynamic_memory + (int)address);
}
static void settle(volatile Barrier& barrier) {
  events++;
  if (barrier.awaited < 0) fail("a barrier had more arrivals than it expects");
  if (barrier.awaited || barrier.bytes) return;
  barrier.phase = !barrier.phase;
  barrier.awaited = barrier.expected;
}
static void barrier_init(unsigned address, unsigned count) {
  volatile Barrier& barrier = barrier_at(address);
  barrier.phase = 0, barrier.bytes = 0;
  barrier.expected = barrier.awaited = count;
}
static void barrier_arrive(unsigned address) {
  volatile Barrier& barrier = barrier_at(address);
  barrier.awaited = barrier.awaited - 1;
  settle(barrier);
}
static void barrier_expect(unsigned address, unsigned bytes) {
  volatile Barrier& barrier = barrier_at(address);
  barrier.bytes = barrier.bytes + bytes;
  barrier_arrive(address);
}
static void barrier_wait(unsigned address, unsigned phase) {
  while (barrier_at(address).phase == (int)phase) give_way();
}
static void copy_bulk(unsigned target, const unsigned char* source, unsigned bytes,
                      unsigned barrier) {
  if (target % 16 || bytes % 16 || (uintptr_t)source % 16) fail("a copy is not of 16 bytes");
  if ((size_t)target + bytes > dynamic_bytes) fail("a copy goes past the block's memory");
  copies.push_back({target, bytes, barrier, source});
  events++;
}

// Numbers
static float from_half(unsigned short bits) {
  _Float16 half;
  memcpy(&half, &bits, sizeof half);
  return half;
}
static unsigned short to_half(float value) {
  const _Float16 half = value;
  unsigned short bits;
  memcpy(&bits, &half, sizeof bits);
  return bits;
}
static unsigned two_halves(float low, float high) { return to_half(low) | to_half(high) << 16; }
static float flushed(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.f, x) : x; }
static float exp2_of(float x) { return flushed(exp2f(flushed(x))); }
static float log2_of(float x) { return log2f(flushed(x)); }
static unsigned short query_bits(float value) {
#if QUERY_BF16
  const unsigned bits = bits_of(value);
  return value != value ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
#else
  return to_half(value);
#endif
}
static unsigned permuted(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = a | (uint64_t)b << 32;
  unsigned out = 0;
  for (int i = 0; i < 4; i++) {
    const unsigned chosen = selector >> 4 * i, byte = bytes >> 8 * (chosen & 7) & 0xFF;
    out |= (chosen & 8 ? byte >> 7 ? 0xFF : 0 : byte) << 8 * i;
  }
  return out;
}
static unsigned times_half(unsigned a, unsigned b) {
  return two_halves(from_half(a) * from_half(b), from_half(a >> 16) * from_half(b >> 16));
}
static unsigned squared(unsigned a) { return times_half(a, a); }
static unsigned plus_squared(unsigned a, unsigned sum) {
  const float low = from_half(a), high = from_half(a >> 16);
  return two_halves(fmaf(low, low, from_half(sum)), fmaf(high, high, from_half(sum >> 16)));
}
static float from_e4m3(unsigned bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const float size = exponent ? ldexpf(8 + mantissa, exponent - 10) : ldexpf(mantissa, -9);
  return (bits & 0x7F) == 0x7F ? NAN : bits & 0x80 ? -size : size;
}
static void floats_8(unsigned word, unsigned& first, unsigned& second) {
  first = two_halves(from_e4m3(word & 0xFF), from_e4m3(word >> 8 & 0xFF));
  second = two_halves(from_e4m3(word >> 16 & 0xFF), from_e4m3(word >> 24));
}
// mma.sync.m16n8k16: lane 4 g + t has rows g and g + 8 of the left, column g of the right, and
// columns 2 t and 2 t + 1 of the sum.
static void multiply(float (&sum)[4], uint4 a, unsigned b0, unsigned b1) {
  const Word* words = meet({{a.x, a.y, a.z, a.w, b0, b1}});
  const int g = current % 32 / 4, t = current % 4;
  for (int k = 0; k < 16; k++) {
    const int lane = k % 8 / 2, shift = k % 2 * 16, late = k / 8;
    const unsigned* left = words[4 * g + lane].part;
    for (int i = 0; i < 2; i++) {
      const float right = from_half(words[4 * (2 * t + i) + lane].part[4 + late] >> shift);
      sum[i] += from_half(left[2 * late] >> shift) * right;
      sum[2 + i] += from_half(left[2 * late + 1] >> shift) * right;
    }
  }
}

// Launches
static uint64_t die = 88172645463325252u;
static int drawn(int below) {
  die ^= die << 13, die ^= die >> 7, die ^= die << 17;
  return (die >> 33) % below;
}
static void live() {
  body();
  fibers[current].has_ended = true;
  alive--, events++;
  if (block_arrived && block_arrived == alive) open_block_meeting();
  for (;;) give_way();
}
static void resume(int warp) {
  for (current = warp * 32; current < (warp + 1) * 32; current++) {
    if (fibers[current].has_ended) continue;
    threadIdx = {(unsigned)current, 0, 0};
    const int thread = current;
    swapcontext(&scheduler, &fibers[thread].context);
  }
}
static void land_a_copy() {
  const int chosen = drawn(copies.size());
  const Copy copy = copies[chosen];
  copies.erase(copies.begin() + chosen);
  memcpy(dynamic_memory + copy.target, copy.source, copy.bytes);
  volatile Barrier& barrier = barrier_at(copy.barrier);
  barrier.bytes = barrier.bytes - copy.bytes;
  settle(barrier);
}
static void start_block(int threads) {
  fibers.resize(threads);
  warps = std::vector<Warp>(threads / 32);
  alive = threads, block_arrived = 0;
  memset(team_arrived, 0, sizeof team_arrived);
  memset(dynamic_memory, 0xFF, sizeof dynamic_memory);  // NaN, whatever reads it
  for (Fiber& fiber : fibers) {
    fiber.has_ended = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    makecontext(&fiber.context, live, 0);
  }
}
static void run_block(int threads) {
  start_block(threads);
  const int count = threads / 32, slow = drawn(count + 1), rarely = 1 << 3 * drawn(3);
  while (alive && fault.empty()) {
    const long before = events;
    for (int i = 0; i < 2 * count; i++) {
      const int warp = drawn(count);
      if (warp != slow || !drawn(16)) resume(warp);
    }
    if (events == before)
      for (int warp = 0; warp < count; warp++) resume(warp);
    if (copies.size() && (events == before || !drawn(rarely))) land_a_copy();
    if (events == before && alive) fault = "threads wait for ever";
  }
  if (fault.empty() && copies.size()) fault = "a block has ended before its copies";
  copies.clear();
}
static const char* run_grid(const unsigned* grid, int threads, size_t bytes,
                            std::function<void()> kernel) {
  body = kernel, fault = "", dynamic_bytes = bytes;
  gridDim = {grid[0], grid[1], grid[2]};
  for (unsigned i = 0; i < grid[0] * grid[1] * grid[2] && fault.empty(); i++) {
    blockIdx = {i % grid[0], i / grid[0] % grid[1], i / grid[0] / grid[1]};
    run_block(threads);
  }
  return fault.c_str();
}
