/* An emulator of Intel AMX: it handles the signal of an illegal instruction, computes what the instruction does to the
 * tiles of its thread, and goes on behind it. Kernels run as they were compiled, on CPUs without AMX.
 *
 * Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, the pages of LDTILECFG, TDPBF16PS,
 * TDPBSSD, TILELOADD, TILERELEASE, TILESTORED and TILEZERO, and chapter 2 for their encoding.
 */

#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

enum { TILES = 8, ROWS = 16, LINE = 64 };

static __thread struct {
  int configured;
  uint16_t line_bytes[TILES];
  uint8_t rows[TILES];
  uint8_t data[TILES][ROWS][LINE];
} state;

enum { CONFIGURATIONS, LOADS, STORES, PRODUCTS, ZEROS, RELEASES, KINDS };
static long counts[KINDS];

static void note(int kind) { __atomic_add_fetch(&counts[kind], 1, __ATOMIC_RELAXED); }

static struct sigaction before;

/* The registers of a signal's context, in the order of their numbers in instructions. */
static const int REGISTERS[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

static float flushed(uint32_t bits) { /* denormal numbers are zeros */
  float value;
  if (!(bits & 0x7f800000)) bits &= 0x80000000;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static float flushed_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return flushed(bits);
}

/* Load what LDTILECFG is given; return whether a CPU would take it. */
static int configure(const uint8_t *config) {
  if (config[0] != 1 || config[1] != 0) return 0;
  for (int each = 2; each < 16; each++)
    if (config[each]) return 0;
  for (int tile = 0; tile < 16; tile++) {
    uint16_t line_bytes = (uint16_t)(config[16 + 2 * tile] | config[17 + 2 * tile] << 8), rows = config[48 + tile];
    if (line_bytes > LINE || rows > ROWS || (tile >= TILES && (line_bytes || rows)) || !line_bytes != !rows) return 0;
    if (tile < TILES) state.line_bytes[tile] = line_bytes, state.rows[tile] = rows;
  }
  memset(state.data, 0, sizeof state.data);
  state.configured = 1;
  return 1;
}

/* Add the products of two tiles to a third, of bytes whose signs count where they are said to, or of bfloat16. */
static int multiply(int sums, int first, int second, int floats, int first_signed, int second_signed) {
  int words = state.line_bytes[first] / 4, columns = state.line_bytes[sums] / 4;
  if (sums == first || sums == second || first == second) return 0;
  if (state.rows[sums] != state.rows[first] || state.rows[second] != words) return 0;
  if (state.line_bytes[second] != state.line_bytes[sums] || state.line_bytes[first] % 4) return 0;
  for (int row = 0; row < state.rows[sums]; row++)
    for (int word = 0; word < words; word++) {
      const uint8_t *a = state.data[first][row] + 4 * word;
      for (int column = 0; column < columns; column++) {
        const uint8_t *b = state.data[second][word] + 4 * column;
        uint8_t *place = state.data[sums][row] + 4 * column;
        if (floats) {
          float sum;
          memcpy(&sum, place, 4);
          for (int half = 0; half < 2; half++) {
            uint32_t x = (uint32_t)(a[2 * half] | a[2 * half + 1] << 8) << 16;
            uint32_t y = (uint32_t)(b[2 * half] | b[2 * half + 1] << 8) << 16;
            sum = flushed_float(__builtin_fmaf(flushed(x), flushed(y), flushed_float(sum)));
          }
          memcpy(place, &sum, 4);
        } else {
          uint32_t sum;
          memcpy(&sum, place, 4);
          for (int byte = 0; byte < 4; byte++) {
            int x = first_signed ? (int8_t)a[byte] : a[byte], y = second_signed ? (int8_t)b[byte] : b[byte];
            sum += (uint32_t)(x * y);
          }
          memcpy(place, &sum, 4);
        }
      }
    }
  return 1;
}

/* Do what an instruction does; return its length, or 0 for one that is not of AMX, or that a CPU would refuse. */
static int run(const uint8_t *code, greg_t *registers) {
  if (code[0] != 0xc4 || (code[1] & 0x1f) != 2 || code[2] & 0x84) return 0; /* VEX, map 0F 38, W0, 128 bits */
  int high = (code[1] >> 5) ^ 7, prefix = code[2] & 3, other = (code[2] >> 3 & 15) ^ 15, opcode = code[3];
  int mode = code[4] >> 6, reg = code[4] >> 3 & 7, rm = code[4] & 7, length = 5;
  if (opcode == 0x5c || opcode == 0x5e) {
    if (mode != 3 || high || other >= TILES || !state.configured || (opcode == 0x5c && prefix != 2)) return 0;
    /* Without a prefix neither has a sign, with 66 the second, with F3 the first, with F2 both. */
    note(PRODUCTS);
    return multiply(reg, rm, other, opcode == 0x5c, prefix >= 2, prefix == 1 || prefix == 3) ? length : 0;
  }
  if (opcode != 0x49 && opcode != 0x4b) return 0;
  if (mode == 3) {
    if (opcode == 0x49 && prefix == 0 && !reg && !rm) {
      state.configured = 0;
      note(RELEASES);
      return length;
    }
    if (opcode != 0x49 || prefix != 3 || rm || !state.configured) return 0;
    memset(state.data[reg], 0, sizeof state.data[reg]);
    note(ZEROS);
    return length;
  }
  int64_t address = 0, stride = 0;
  int has_base = 1, base = rm | (high & 1) << 3;
  if (rm == 4) { /* a byte says which registers are the base and the index, here the stride */
    int scale = code[5] >> 6, index = (code[5] >> 3 & 7) | (high & 2) << 2;
    base = (code[5] & 7) | (high & 1) << 3;
    if (index != 4) stride = registers[REGISTERS[index]] << scale;
    length++;
    has_base = mode || (base & 7) != 5;
  } else if (opcode == 0x4b) {
    return 0;
  }
  int relative = !mode && rm == 5; /* to the next instruction */
  if (mode == 1) address = (int8_t)code[length], length += 1;
  if (mode == 2 || relative || !has_base) {
    int32_t offset;
    memcpy(&offset, code + length, 4);
    address = offset, length += 4;
  }
  address += relative ? (int64_t)(uintptr_t)code + length : has_base ? registers[REGISTERS[base]] : 0;
  uint8_t *memory = (uint8_t *)(uintptr_t)address;
  if (opcode == 0x49) {
    if (prefix || reg || !configure(memory)) return 0;
    note(CONFIGURATIONS);
    return length;
  }
  if (!state.configured || !state.rows[reg] || high & 4 || !prefix) return 0;
  int stores = prefix == 2;
  if (!stores) memset(state.data[reg], 0, sizeof state.data[reg]);
  for (int row = 0; row < state.rows[reg]; row++) {
    uint8_t *tile = state.data[reg][row], *line = memory + row * stride;
    if (stores)
      memcpy(line, tile, state.line_bytes[reg]);
    else
      memcpy(tile, line, state.line_bytes[reg]);
  }
  note(stores ? STORES : LOADS);
  return length;
}

static void handle(int signal, siginfo_t *info, void *opaque) {
  greg_t *registers = ((ucontext_t *)opaque)->uc_mcontext.gregs;
  int length = run((const uint8_t *)registers[REG_RIP], registers);
  registers[REG_RIP] += length;
  if (!length) sigaction(SIGILL, &before, 0); /* it comes again, and is what it was without us */
}

/* Emulate AMX from now on. */
void emulate(void) {
  struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
  sigaction(SIGILL, &action, &before);
}

/* Stop emulating it. */
void stop(void) { sigaction(SIGILL, &before, 0); }

/* Write how many instructions of each kind there were since the last call. */
void take_counts(long *taken) {
  for (int kind = 0; kind < KINDS; kind++) taken[kind] = __atomic_exchange_n(&counts[kind], 0, __ATOMIC_RELAXED);
}
