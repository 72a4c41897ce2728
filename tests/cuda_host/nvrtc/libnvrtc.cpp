// A libnvrtc.so for the host-run driver: accepts a kernel source and returns PTX text naming the kernels linked into libcuda; for a cubin,
// after ELF's magic number. It compiles nothing; it rejects what NVRTC certainly would: local headers that are neither passed along nor
// inlined, an unknown architecture.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>

#define NVRTC_CALL extern "C" __attribute__((visibility("default"))) int
static const int ARCHITECTURES[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};  // as 13.0
enum { SUCCESS = 0, INVALID_INPUT = 3, INVALID_PROGRAM = 4, INVALID_OPTION = 5, COMPILATION = 6 };

struct Program {
  std::string source, log, ptx;
  int headers;
};

// Whether the source defines this kernel. A name pasted together by a macro is matched by its prefix.
static bool mentions(const std::string& source, const std::string& kernel) {
  for (size_t end = kernel.size(); end != std::string::npos && end > 0; end = kernel.rfind('_', end - 1))
    if (source.find(kernel.substr(0, end)) != std::string::npos) return true;
  return false;
}

// The kernels defined by the source and present in the libcuda loaded in this process, as PTX entries.
static std::string entries(const std::string& source) {
  void* driver = dlopen("libcuda.so", RTLD_NOW);
  const auto count = reinterpret_cast<int (*)()>(driver ? dlsym(driver, "ch_kernel_count") : nullptr);
  const auto name = reinterpret_cast<const char* (*)(int)>(driver ? dlsym(driver, "ch_kernel_name") : nullptr);
  std::string text;
  for (int i = 0; count && name && i < count(); ++i)
    if (mentions(source, name(i))) text += std::string(".visible .entry ") + name(i) + "()\n{ ret; }\n";
  return text;
}

NVRTC_CALL nvrtcVersion(int* major, int* minor) {
  *major = 13, *minor = 0;
  return SUCCESS;
}
NVRTC_CALL nvrtcGetNumSupportedArchs(int* count) {
  *count = sizeof ARCHITECTURES / sizeof *ARCHITECTURES;
  return SUCCESS;
}
NVRTC_CALL nvrtcGetSupportedArchs(int* architectures) {
  memcpy(architectures, ARCHITECTURES, sizeof ARCHITECTURES);
  return SUCCESS;
}
extern "C" __attribute__((visibility("default"))) const char* nvrtcGetErrorString(int code) {
  switch (code) {
    case SUCCESS: return "NVRTC_SUCCESS";
    case INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
    case INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
    case INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
    case COMPILATION: return "NVRTC_ERROR_COMPILATION";
    default: return "NVRTC_ERROR_INTERNAL_ERROR";
  }
}
NVRTC_CALL nvrtcCreateProgram(Program** program, const char* source, const char*, int headers, const char* const*,
                              const char* const*) {
  if (!source) return INVALID_INPUT;
  *program = new Program{source, "", "", headers};
  return SUCCESS;
}
NVRTC_CALL nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return SUCCESS;
}
NVRTC_CALL nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  std::string target = "sm_75";
  for (int i = 0; i < count; ++i) {
    const std::string option = options[i];
    const size_t architecture = option.find("_");
    if (option.rfind("--gpu-architecture=", 0) && option.rfind("-arch=", 0)) continue;
    const int number = architecture == std::string::npos ? 0 : atoi(option.c_str() + architecture + 1);
    if (std::find(std::begin(ARCHITECTURES), std::end(ARCHITECTURES), number) == std::end(ARCHITECTURES)) {
      program->log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
      return INVALID_OPTION;
    }
    target = "sm" + option.substr(architecture);
  }
  const size_t include = program->headers ? std::string::npos : program->source.find("#include \"");
  if (include != std::string::npos) {
    const std::string line = program->source.substr(include, program->source.find('\n', include) - include);
    program->log = "error: could not open source file of " + line + "\n";
    return COMPILATION;
  }
  std::string asked;  // for tests to read
  for (int i = 0; i < count; ++i) asked += std::string("// ") + options[i] + "\n";
  program->ptx = asked + ".version 9.0\n.target " + target + "\n.address_size 64\n" + entries(program->source);
  return SUCCESS;
}
// Machine code exists only if a real architecture was requested, as in the library.
static std::string cubin(const Program* program) {
  const bool real = program->ptx.find("// --gpu-architecture=sm_") != std::string::npos;
  return real ? "\x7F" "ELF" + program->ptx : "";
}
NVRTC_CALL nvrtcGetCUBINSize(Program* program, size_t* bytes) {
  *bytes = cubin(program).size();
  return SUCCESS;
}
NVRTC_CALL nvrtcGetCUBIN(Program* program, char* to) {
  const std::string image = cubin(program);
  memcpy(to, image.data(), image.size());
  return image.empty() ? INVALID_PROGRAM : SUCCESS;
}
NVRTC_CALL nvrtcGetPTXSize(Program* program, size_t* bytes) {
  *bytes = program->ptx.size() + 1;
  return SUCCESS;
}
NVRTC_CALL nvrtcGetPTX(Program* program, char* ptx) {
  memcpy(ptx, program->ptx.c_str(), program->ptx.size() + 1);
  return SUCCESS;
}
NVRTC_CALL nvrtcGetProgramLogSize(Program* program, size_t* bytes) {
  *bytes = program->log.size() + 1;
  return SUCCESS;
}
NVRTC_CALL nvrtcGetProgramLog(Program* program, char* log) {
  memcpy(log, program->log.c_str(), program->log.size() + 1);
  return SUCCESS;
}
