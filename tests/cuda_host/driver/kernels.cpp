// Modules, functions and launches. The kernels are linked in: an image only needs to look like one.
#include <fstream>
#include <iterator>

#include "driver.h"

namespace driver {
namespace {
constexpr int SHARED_WITHOUT_OPT_IN = 48 << 10;

using Variables = std::map<std::string, std::vector<char>>;

// A module's settable variables, as if it contained all kernel files.
Variables initial_variables() {
  Variables variables;
  for (int i = 0; const ch_variable* variable = ch_get_variable(i); ++i) variables[variable->name] = variable->initial;
  return variables;
}

struct Function {
  const ch_kernel* kernel;
  std::shared_ptr<Variables> variables;
  int shared_limit = SHARED_WITHOUT_OPT_IN;
};

struct Module {
  std::string ptx;  // its text, for text images
  std::shared_ptr<Variables> variables = std::make_shared<Variables>(initial_variables());
  std::map<std::string, std::unique_ptr<Function>> functions;  // by name
};
std::map<void*, std::unique_ptr<Module>> modules;

Function* function_of(void* handle) {
  for (const auto& [module_handle, module] : modules)
    for (const auto& [name, function] : module->functions)
      if (function.get() == handle) return function.get();
  return nullptr;
}

// Whether the environment names this kernel.
bool is_named(const char* variable, const char* kernel) {
  const char* names = getenv(variable);
  return names && (std::string(",") + names + ",").find(std::string(",") + kernel + ",") != std::string::npos;
}

// A launch with its own copy of the parameter values: the caller's may be gone when it runs.
class Launch {
 public:
  Launch(const Function& function, const unsigned (&grid_dim)[3], const unsigned (&block_dim)[3], unsigned shared_bytes)
      : kernel(function.kernel), variables(function.variables), grid{grid_dim[0], grid_dim[1], grid_dim[2]}, block{block_dim[0], block_dim[1], block_dim[2]},
        shared(shared_bytes) {}
  const ch_kernel* kernel;
  std::shared_ptr<Variables> variables;
  unsigned grid[3], block[3], shared;
  std::vector<std::vector<char>> values;

  // Runs the first blocks up to their wait; null if there is nothing to run.
  ch_early* begin() const {
    if (is_broken() || is_faulty() || hangs()) return nullptr;
    configure();
    return ch_begin_early(kernel, grid, block, shared, params().data());
  }
  Result run(ch_early* early) const {
    static const bool trace = number_from_environment("UQAC_HOST_CUDA_TRACE", 0) != 0;
    if (is_broken()) return SUCCESS;
    if (is_faulty()) return LAUNCH_FAILED;
    while (hangs()) std::this_thread::sleep_for(std::chrono::seconds(1));
    const auto start = std::chrono::steady_clock::now();
    if (!early) configure();  // a kernel that has begun comes after others of its own model
    const int code = early ? ch_finish(early) : ch_launch(kernel, grid, block, shared, params().data());
    if (trace)
      fprintf(stderr, "%s <<<(%u,%u,%u), (%u,%u,%u), %u>>> %.3f ms%s\n", kernel->name, grid[0], grid[1], grid[2],
              block[0], block[1], block[2], shared,
              std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count(),
              early ? ", begun early" : "");
    if (code) fprintf(stderr, "libcuda on the CPU: %s\n", ch_last_error());
    check_guards(kernel->name);
    return code ? LAUNCH_FAILED : SUCCESS;
  }

 private:
  bool is_broken() const { return is_named("UQAC_HOST_CUDA_BREAK", kernel->name); }
  bool is_faulty() const { return is_named("UQAC_HOST_CUDA_FAULT", kernel->name); }
  bool hangs() const { return is_named("UQAC_HOST_CUDA_HANG", kernel->name); }
  std::vector<void*> params() const {
    std::vector<void*> places;
    for (const auto& value : values) places.push_back(const_cast<char*>(value.data()));
    return places;
  }
  void configure() const {
    for (int i = 0; const ch_variable* variable = ch_get_variable(i); ++i) {
      const std::vector<char>& value = variables->at(variable->name);
      memcpy(variable->address, value.data(), value.size());
    }
    static uint64_t launches = 0;
    static const uint64_t seed = number_from_environment("UQAC_HOST_CUDA_SEED", 0);
    static const unsigned threads = unsigned(
        number_from_environment("UQAC_HOST_CUDA_THREADS", std::max(1u, std::thread::hardware_concurrency())));
    ch_configure(threads, seed ? seed + launches++ : 0);
  }
};

bool begins_with(const char* image, std::initializer_list<unsigned char> magic) {
  return !memcmp(image, std::data(magic), magic.size());
}

Result load(void** handle, const char* image) {
  auto module = std::make_unique<Module>();
  const bool fatbin = begins_with(image, {0x50, 0xED, 0x55, 0xBA});
  const bool cubin = !fatbin && begins_with(image, {0x7F, 'E', 'L', 'F'});
  if (!fatbin && !cubin) {
    module->ptx = image;
    if (module->ptx.find(".version") == std::string::npos || module->ptx.find(".target") == std::string::npos)
      return INVALID_IMAGE;
  }
  *handle = module.get();
  modules[*handle] = std::move(module);
  return SUCCESS;
}

}  // namespace

bool is_variable(Address at, size_t bytes) {
  for (const auto& [handle, module] : modules)
    for (const auto& [name, value] : *module->variables) {
      const Address begin = reinterpret_cast<Address>(value.data());
      if (at >= begin && bytes <= value.size() && at - begin <= value.size() - bytes) return true;
    }
  return false;
}

namespace {
bool ptx_has_entry(const std::string& ptx, const std::string& name) {
  const std::string entry = ".entry " + name;
  for (size_t at = ptx.find(entry); at != std::string::npos; at = ptx.find(entry, at + 1)) {
    const char after = at + entry.size() < ptx.size() ? ptx[at + entry.size()] : '\0';
    if (!isalnum(after) && after != '_' && after != '$') return true;
  }
  return false;
}
}  // namespace
}  // namespace driver

using namespace driver;

CUDA_CALL cuModuleLoadData(void** module, const void* image) {
  return call_in_context(__func__, [&] {
    if (const Result refused = refuse_in_capture()) return refused;
    return load(module, static_cast<const char*>(image));
  });
}
CUDA_CALL cuModuleLoad(void** module, const char* path) {
  return call_in_context(__func__, [&] {
    if (const Result refused = refuse_in_capture()) return refused;
    std::ifstream file(path, std::ios::binary);
    if (!file) return Result(FILE_NOT_FOUND);
    const std::string image((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    return image.size() < 4 ? Result(INVALID_IMAGE) : load(module, image.c_str());
  });
}
CUDA_CALL cuModuleUnload(void* module) {
  return call_in_context(__func__, [&] {
    const Result result = run_everything();
    return modules.erase(module) ? result : Result(INVALID_HANDLE);
  });
}
CUDA_CALL cuModuleGetFunction(void** function, void* module, const char* name) {
  return call_in_context(__func__, [&] {
    const auto found = modules.find(module);
    if (found == modules.end()) return INVALID_HANDLE;
    const std::string& ptx = found->second->ptx;
    const ch_kernel* kernel = ch_find(name);
    const bool elsewhere = ch_find_constant((std::string(name) + "_cluster").c_str()) && !has_clusters();
    if (!kernel || elsewhere || (!ptx.empty() && !ptx_has_entry(ptx, name))) return NOT_FOUND;
    auto& made = found->second->functions[name];
    if (!made) made.reset(new Function{kernel, found->second->variables});
    *function = made.get();
    return SUCCESS;
  });
}

// A constant exported by a kernel file, if the linked kernels have it, or a variable.
CUDA_CALL cuModuleGetGlobal_v2(Address* address, size_t* bytes, void* module, const char* name) {
  return call_in_context(__func__, [&] {
    const auto found = modules.find(module);
    if (found == modules.end()) return INVALID_HANDLE;
    const auto variable = found->second->variables->find(name);
    if (variable != found->second->variables->end()) {
      *address = reinterpret_cast<Address>(variable->second.data());
      *bytes = variable->second.size();
      return SUCCESS;
    }
    const unsigned* value = ch_find_constant(name);
    if (!value) return NOT_FOUND;
    if (address) *address = reinterpret_cast<Address>(value);
    if (bytes) *bytes = sizeof *value;
    return SUCCESS;
  });
}

CUDA_CALL cuFuncGetName(const char** name, void* handle) {
  return call_in_context(__func__, [&] {
    const Function* function = function_of(handle);
    if (function) *name = function->kernel->name;
    return function ? SUCCESS : INVALID_HANDLE;
  });
}
// One parameter's offset and size; INVALID_VALUE past the last, which lets a caller count them.
CUDA_CALL cuFuncGetParamInfo(void* handle, size_t i, size_t* offset, size_t* size) {
  return call_in_context(__func__, [&] {
    const Function* function = function_of(handle);
    if (!function) return INVALID_HANDLE;
    if (i >= size_t(function->kernel->param_count)) return INVALID_VALUE;
    size_t at = 0;
    for (size_t before = 0;; ++before) {
      const size_t bytes = size_t(function->kernel->param_sizes[before]), align = std::min<size_t>(bytes & -bytes, 8);
      at = (at + align - 1) / align * align;  // as for members of a struct whose alignment is at most 8
      if (before == i) break;
      at += bytes;
    }
    *offset = at;
    if (size) *size = size_t(function->kernel->param_sizes[i]);
    return SUCCESS;
  });
}
CUDA_CALL cuFuncGetAttribute(int* value, int attribute, void* handle) {
  return call_in_context(__func__, [&] {
    const Function* function = function_of(handle);
    if (!function) return INVALID_HANDLE;
    switch (attribute) {
      case 0: *value = 1024; break;                    // threads of a block
      case 4: *value = 64; break;                      // registers
      case 5: *value = 80; break;                      // PTX version
      case 6: *value = 90; break;                      // binary version
      case 8: *value = function->shared_limit; break;  // dynamic shared memory
      default: *value = 0;
    }
    return SUCCESS;
  });
}
CUDA_CALL cuFuncSetAttribute(void* handle, int attribute, int value) {
  return call_in_context(__func__, [&] {
    Function* function = function_of(handle);
    if (!function) return INVALID_HANDLE;
    if (attribute == 9) return SUCCESS;  // the preferred share of shared memory
    if (attribute != 8 || value < 0 || value > int(shared_with_opt_in())) return INVALID_VALUE;
    function->shared_limit = value;
    return SUCCESS;
  });
}
CUDA_CALL cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, void* handle, int threads, size_t shared,
                                                               unsigned) {
  return call_in_context(__func__, [&] {
    if (!function_of(handle)) return INVALID_HANDLE;
    if (threads < 1 || threads > 1024) return INVALID_VALUE;
    *blocks = int(std::min<size_t>(2048 / size_t(threads), (228 << 10) / (shared + 1024)));
    return SUCCESS;
  });
}
CUDA_CALL cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* handle, int threads, size_t shared) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, threads, shared, 0);
}

// f16 matrices in tiles whose chunks are permuted as in rows of 128 bytes, the only case modelled.
CUDA_CALL cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* matrix, const uint64_t* sizes, const uint64_t* strides,
                                 const unsigned* tile, const unsigned* steps, int interleave, int permutation, int promotion,
                                 int fill) {
  return call(__func__, [&] {
    constexpr int FLOAT16 = 6, ROWS_OF_128 = 3;
    if (type != FLOAT16 || rank != 2 || steps[0] != 1 || steps[1] != 1 || interleave || permutation != ROWS_OF_128 ||
        promotion < 0 || promotion > 3 || fill)
      return NOT_SUPPORTED;
    const bool made = uintptr_t(map) % 64 == 0 && ch_encode_tensor_map(map, matrix, sizes[0], sizes[1], strides[0], tile[0], tile[1]);
    return made ? SUCCESS : INVALID_VALUE;
  });
}

namespace {
Result launch(void* handle, const unsigned (&grid)[3], const unsigned (&block)[3], unsigned shared, void* stream_handle,
              void** params, void** extra, bool may_start_early) {
  const Function* function = function_of(handle);
  const auto stream = stream_of(stream_handle);
  if (!function || !stream) return INVALID_HANDLE;
  const ch_kernel* kernel = function->kernel;
  const char* refused = ch_refusal(kernel, grid, block, shared);
  if (!refused && int(shared) > function->shared_limit) refused = "more dynamic shared memory than was opted in to";
  if (!refused && (extra || (!params && kernel->param_count))) refused = "no parameters";
  const bool starts_early = ch_find_constant((std::string(kernel->name) + "_starts_early").c_str()) != nullptr;
  if (!refused && may_start_early && !starts_early) refused = "launched to start early, which it is not made for";
  if (refused) {
    fprintf(stderr, "libcuda on the CPU: %s: %s\n", kernel->name, refused);
    return INVALID_VALUE;
  }
  const auto launch = std::make_shared<Launch>(*function, grid, block, shared);
  for (int i = 0; i < kernel->param_count; ++i) {
    const char* value = static_cast<const char*>(params[i]);
    launch->values.emplace_back(value, value + kernel->param_sizes[i]);
  }
  Work work;
  work.run = [launch](ch_early* early) { return launch->run(early); };
  work.lets_next_begin = starts_early;
  if (may_start_early) work.begin = [launch] { return launch->begin(); };
  return enqueue(stream, std::move(work));
}

struct LaunchConfig {  // CUlaunchConfig
  unsigned grid[3], block[3], shared;
  void* stream;
  const struct LaunchAttribute {
    int id;
    char pad[4];
    union {
      char bytes[64];
      int may_start_early;
    };
  }* attributes;
  unsigned attribute_count;
};
constexpr int PROGRAMMATIC_STREAM_SERIALIZATION = 6;
}  // namespace

CUDA_CALL cuLaunchKernel(void* handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                         unsigned block_y, unsigned block_z, unsigned shared, void* stream, void** params, void** extra) {
  return call_in_context(__func__, [&] {
    return launch(handle, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, params, extra, false);
  });
}
CUDA_CALL cuLaunchKernelEx(const LaunchConfig* config, void* handle, void** params, void** extra) {
  return call_in_context(__func__, [&] {
    bool may_start_early = false;
    for (unsigned i = 0; i < config->attribute_count; ++i) {
      if (config->attributes[i].id != PROGRAMMATIC_STREAM_SERIALIZATION) return Result(NOT_SUPPORTED);
      may_start_early |= config->attributes[i].may_start_early != 0;
    }
    return launch(handle, config->grid, config->block, config->shared, config->stream, params, extra, may_start_early);
  });
}
