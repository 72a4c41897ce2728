// A libcublasLt.so that goes with the host-run driver: the calls that the backend makes, computed on the CPU, in the
// order of the stream. Products are of two 16-bit matrices, the first transposed, into f32.
//
// It has three algorithms. The first depends on the number of columns in how it adds (as a library is free to); the
// second adds in one order always; the third is one for which there would be no kernel.
//
// Environment: UQAC_HOST_CUBLASLT_SLOW=1     every product takes a long time
//              UQAC_HOST_CUBLASLT_UNSTEADY=1 there is only the first algorithm
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <memory>
#include <thread>
#include <vector>

#define BLAS_CALL extern "C" __attribute__((visibility("default"))) int
enum { SUCCESS = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };  // cublasStatus_t
enum { R_32F = 0, R_16F = 2, R_16BF = 14 };                                          // cudaDataType
enum { STEADY = 0x57EAD1, UNSTEADY = 0x0DD, MISSING = 0x404 };

namespace {
struct Product {
  int transpose_a = 0;
};
struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t distance;  // elements between columns
};
struct Preference {
  uint64_t workspace = UINT64_MAX;
  uint32_t reductions = UINT32_MAX;
  uint32_t alignment[4] = {256, 256, 256, 256};
};
struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {  // cublasLtMatmulHeuristicResult_t
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
int handle;  // its address is the handle

float widened(uint16_t bits, int type) {
  float x;
  if (type == R_16BF) {
    const uint32_t word = uint32_t(bits) << 16;
    memcpy(&x, &word, 4);
    return x;
  }
  _Float16 half;
  memcpy(&half, &bits, 2);
  return float(half);
}

struct Multiplication {
  float alpha, beta;
  const uint16_t *a, *b;
  float* d;
  Layout a_layout, b_layout, d_layout;
  uint64_t algorithm;

  static std::vector<float> widened_all(const uint16_t* from, const Layout& layout) {
    std::vector<float> all(layout.rows * layout.columns);
    for (size_t i = 0; i < all.size(); ++i)
      all[i] = widened(from[i / layout.rows * layout.distance + i % layout.rows], layout.type);
    return all;
  }
  void run() const {
    if (getenv("UQAC_HOST_CUBLASLT_SLOW")) std::this_thread::sleep_for(std::chrono::milliseconds(120));
    const std::vector<float> wide_a = widened_all(a, a_layout), wide_b = widened_all(b, b_layout);
    const uint64_t k = a_layout.rows, first = algorithm == UNSTEADY ? d_layout.columns % k : 0;
    for (uint64_t column = 0; column < d_layout.columns; ++column)
      for (uint64_t row = 0; row < d_layout.rows; ++row) {
        const float *x = &wide_a[row * k], *y = &wide_b[column * k];
        float sum = 0;
        for (uint64_t i = first; i < k; ++i) sum += x[i] * y[i];
        for (uint64_t i = 0; i < first; ++i) sum += x[i] * y[i];
        float& to = d[column * d_layout.distance + row];
        to = alpha * sum + (beta == 0 ? 0 : beta * to);  // with beta = 0 what is there is not read
      }
  }
};

// Adds work to a stream of the libcuda that is loaded in this process.
int enqueue(void* stream, std::unique_ptr<Multiplication> multiplication) {
  using Run = void (*)(void*);
  void* driver = dlopen("libcuda.so", RTLD_NOW);
  const auto add = reinterpret_cast<int (*)(void*, Run, void*)>(driver ? dlsym(driver, "ch_enqueue") : nullptr);
  if (!add) return EXECUTION_FAILED;
  const Run run = [](void* data) {
    std::unique_ptr<Multiplication> multiplication(static_cast<Multiplication*>(data));
    multiplication->run();
  };
  return add(stream, run, multiplication.release()) ? EXECUTION_FAILED : SUCCESS;
}

bool fits(const Product& product, const Layout& a, const Layout& b, const Layout& d) {
  const bool types = a.type == b.type && (a.type == R_16F || a.type == R_16BF) && d.type == R_32F;
  const bool sizes = a.rows == b.rows && a.columns == d.rows && b.columns == d.columns;
  const bool whole = uint64_t(a.distance) >= a.rows && uint64_t(b.distance) >= b.rows && uint64_t(d.distance) >= d.rows;
  return product.transpose_a == 1 && types && sizes && whole;
}

template <class T>
int set(T& to, const void* from, size_t bytes) {
  if (bytes != sizeof(T)) return INVALID_VALUE;
  memcpy(&to, from, bytes);
  return SUCCESS;
}
}  // namespace

extern "C" __attribute__((visibility("default"))) size_t cublasLtGetVersion() { return 130100; }
BLAS_CALL cublasLtCreate(void** made) { return *made = &handle, SUCCESS; }
BLAS_CALL cublasLtDestroy(void* made) { return made == &handle ? SUCCESS : INVALID_VALUE; }

BLAS_CALL cublasLtMatmulDescCreate(Product** product, int compute, int scale) {
  if (compute != 68 || scale != R_32F) return NOT_SUPPORTED;  // CUBLAS_COMPUTE_32F
  *product = new Product;
  return SUCCESS;
}
BLAS_CALL cublasLtMatmulDescSetAttribute(Product* product, int attribute, const void* value, size_t bytes) {
  return attribute == 3 ? set(product->transpose_a, value, bytes) : NOT_SUPPORTED;
}
BLAS_CALL cublasLtMatmulDescDestroy(Product* product) { return delete product, SUCCESS; }

BLAS_CALL cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows, uint64_t columns, int64_t distance) {
  *layout = new Layout{type, rows, columns, distance};
  return SUCCESS;
}
BLAS_CALL cublasLtMatrixLayoutDestroy(Layout* layout) { return delete layout, SUCCESS; }

BLAS_CALL cublasLtMatmulPreferenceCreate(Preference** preference) { return *preference = new Preference, SUCCESS; }
BLAS_CALL cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value, size_t bytes) {
  if (attribute == 1) return set(preference->workspace, value, bytes);
  if (attribute == 3) return set(preference->reductions, value, bytes);
  return attribute >= 5 && attribute <= 8 ? set(preference->alignment[attribute - 5], value, bytes) : NOT_SUPPORTED;
}
BLAS_CALL cublasLtMatmulPreferenceDestroy(Preference* preference) { return delete preference, SUCCESS; }

BLAS_CALL cublasLtMatmulAlgoGetHeuristic(void*, Product* product, Layout* a, Layout* b, Layout*, Layout* d,
                                         Preference* preference, int max_results, Heuristic* results, int* count) {
  *count = 0;
  if (!fits(*product, *a, *b, *d)) return NOT_SUPPORTED;
  if (preference->workspace || preference->reductions) return NOT_SUPPORTED;  // what must not be asked of it here
  for (const uint64_t id : {UNSTEADY, MISSING, STEADY}) {
    if (*count == max_results || (id != UNSTEADY && getenv("UQAC_HOST_CUBLASLT_UNSTEADY"))) break;
    results[*count] = Heuristic{{{id}}, 0, SUCCESS, 1.0f, {}};
    ++*count;
  }
  return SUCCESS;
}

BLAS_CALL cublasLtMatmul(void*, Product* product, const float* alpha, const void* a, Layout* a_layout, const void* b,
                         Layout* b_layout, const float* beta, const void* c, Layout* c_layout, void* d,
                         Layout* d_layout, const Algorithm* algorithm, void*, size_t workspace, void* stream) {
  if (!fits(*product, *a_layout, *b_layout, *d_layout) || c != d || c_layout->distance != d_layout->distance)
    return INVALID_VALUE;
  if (workspace || (uintptr_t(a) | uintptr_t(b) | uintptr_t(d)) % 16) return INVALID_VALUE;
  if (algorithm->data[0] != STEADY && algorithm->data[0] != UNSTEADY) return NOT_SUPPORTED;
  return enqueue(stream, std::unique_ptr<Multiplication>(new Multiplication{
                             *alpha, *beta, static_cast<const uint16_t*>(a), static_cast<const uint16_t*>(b),
                             static_cast<float*>(d), *a_layout, *b_layout, *d_layout, algorithm->data[0]}));
}
