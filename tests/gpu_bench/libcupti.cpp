// A libcupti that "records" a prefill and twenty decode steps of 1000 ns, 950 of them filled by kernels: the calls and
// the common record prefix are those of CUPTI 13 (cupti_activity.h).
#include <cstdint>
#include <cstring>

namespace {
struct KernelRecord {
  uint32_t kind, settings[3];
  uint64_t start, end, launch[9];
  const char* name;
  uint64_t rest[14];
};

using Requested = void (*)(uint8_t** buffer, size_t* size, size_t* most_records);
using Completed = void (*)(void* context, uint32_t stream, uint8_t* buffer, size_t size, size_t valid);
constexpr uint32_t KERNEL = 10, MEMCPY = 1;
constexpr int OK = 0, NO_MORE = 12, REFUSED = 1;

Requested requested = nullptr;
Completed completed = nullptr;
bool enabled = false;

uint8_t *buffer, *end;
void add(uint32_t kind, const char* name, uint64_t from, uint64_t to) {
  KernelRecord record = {};
  record.kind = kind, record.name = name, record.start = from, record.end = to;
  memcpy(end, &record, sizeof record);
  end += sizeof record;
}
}  // namespace

extern "C" {
int cuptiActivityRegisterCallbacks(Requested r, Completed c) {
  requested = r, completed = c;
  return OK;
}
int cuptiActivityEnable(uint32_t kind) {
  enabled = requested && kind == KERNEL;
  return enabled ? OK : REFUSED;
}
int cuptiActivityDisable(uint32_t) { return enabled = false, OK; }
int cuptiActivityFlushAll(uint32_t) {
  if (!enabled) return REFUSED;
  size_t size = 0, most_records = 0;
  requested(&buffer, &size, &most_records);
  end = buffer;
  add(KERNEL, "embed_f16", 0, 100);
  add(KERNEL, "gemm_m128", 200, 9000);
  for (uint64_t step = 0; step < 20; ++step) {
    const uint64_t t = 10000 + 1000 * step;
    add(KERNEL, "head_partial", t + 700, t + 950);  // out of order, as if from another buffer
    add(KERNEL, "embed_f16", t, t + 100);
    add(MEMCPY, nullptr, t + 40, t + 60);
    add(KERNEL, "gemv_f16", t + 100, t + 700);
  }
  add(KERNEL, "embed_f16", 30000, 30100);
  completed(nullptr, 0, buffer, size, size_t(end - buffer));
  return OK;
}
int cuptiActivityGetNextRecord(uint8_t* from, size_t valid, KernelRecord** record) {
  KernelRecord* next = *record ? *record + 1 : reinterpret_cast<KernelRecord*>(from);
  if (reinterpret_cast<uint8_t*>(next + 1) > from + valid) return NO_MORE;
  *record = next;
  return OK;
}
}
