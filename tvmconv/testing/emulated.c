/* Runs one kernel of a library as TVM's runtime would, on a CPU that an emulator pretends to be.
 *
 * Arguments: the library, the kernel's symbol, then of each operand its file, the code and the bits of its DLPack type,
 * its number of dimensions, and these. The last operand is the output, which is written back to its file. TVM's runtime
 * is not there: what kernels call of it is below, with several tasks of a parallel loop one after the other.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tvm/ffi/c_api.h>

enum { MOST_OPERANDS = 8, MOST_DIMENSIONS = 8, TASKS = 3, LINE = 64 };

typedef struct {
  void* sync_handle;
  int32_t num_task;
} ParallelGroupEnv;

typedef int (*Task)(int task_id, ParallelGroupEnv* env, void* closure);

static int launch(Task task, void* closure, int wanted) {
  ParallelGroupEnv env = {NULL, wanted ? wanted : TASKS};
  for (int id = 0; id < env.num_task; ++id)
    if (task(id, &env, closure)) return -1;
  return 0;
}

static void* allocate(int device_type, int device_id, uint64_t size, int code, int bits) {
  void* memory = NULL;
  return posix_memalign(&memory, LINE, size) ? NULL : memory;
}

static int release(int device_type, int device_id, void* memory) {
  free(memory);
  return 0;
}

/* The library is linked against this one. */
void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  fprintf(stderr, "%s: ", kind);
  for (int32_t i = 0; i < count; ++i)
    if (parts[i]) fputs(parts[i], stderr);
  fputc('\n', stderr);
}

static void provide(void* library, const char* name, void* function) {
  void** place = dlsym(library, name);
  if (place) *place = function;
}

static void die(const char* what, const char* why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(2);
}

/* The elements in a file, at an address that is a multiple of an element's size and of nothing larger. */
static void* contents(const char* path, size_t itemsize, size_t size) {
  char* memory = allocate(0, 0, size + itemsize, 0, 0);
  FILE* file = fopen(path, "rb");
  if (!memory || !file) die(path, strerror(errno));
  if (fread(memory + itemsize, 1, size, file) != size) die(path, ferror(file) ? strerror(errno) : "it ends too early");
  fclose(file);
  return memory + itemsize;
}

int main(int argc, char** argv) {
  DLTensor tensors[MOST_OPERANDS] = {0};
  TVMFFIAny arguments[MOST_OPERANDS] = {0}, result = {0};
  int64_t shapes[MOST_OPERANDS][MOST_DIMENSIONS], strides[MOST_OPERANDS][MOST_DIMENSIONS];
  const char* output = NULL;
  size_t size = 0;
  int count = 0;

  for (int at = 3; at < argc; ++count) {
    output = argv[at++];
    DLTensor* tensor = &tensors[count];
    tensor->device.device_type = kDLCPU;
    tensor->dtype.code = atoi(argv[at++]);
    tensor->dtype.bits = atoi(argv[at++]);
    tensor->dtype.lanes = 1;
    tensor->ndim = atoi(argv[at++]);
    size_t itemsize = tensor->dtype.bits / 8;
    size = itemsize;
    for (int d = 0; d < tensor->ndim; ++d) size *= shapes[count][d] = atoll(argv[at++]);
    for (int64_t d = tensor->ndim - 1, step = 1; d >= 0; step *= shapes[count][d--]) strides[count][d] = step;
    tensor->shape = shapes[count];
    tensor->strides = strides[count];
    tensor->data = contents(output, itemsize, size);
    arguments[count].type_index = kTVMFFIDLTensorPtr;
    arguments[count].v_ptr = tensor;
  }

  void* library = dlopen(argv[1], RTLD_NOW);
  if (!library) die(argv[1], dlerror());
  provide(library, "__TVMBackendParallelLaunch", launch);
  provide(library, "__TVMBackendAllocWorkspace", allocate);
  provide(library, "__TVMBackendFreeWorkspace", release);
  TVMFFISafeCallType kernel = (TVMFFISafeCallType)dlsym(library, argv[2]);
  if (!kernel) die(argv[2], dlerror());
  if (kernel(NULL, arguments, count, &result)) return 1;

  FILE* file = fopen(output, "wb");
  if (!file || fwrite(tensors[count - 1].data, 1, size, file) != size || fclose(file))
    die(output, strerror(errno));
  return 0;
}
