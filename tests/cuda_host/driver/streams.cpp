// Streams, events, and graphs captured from streams.
#include <algorithm>

#include "driver.h"

namespace driver {
namespace {
std::map<void*, std::shared_ptr<Stream>> streams;
std::map<void*, std::unique_ptr<Event>> events;
std::map<void*, std::shared_ptr<Graph>> graphs;          // CUgraph
std::map<void*, std::shared_ptr<const Graph>> programs;  // CUgraphExec
std::set<std::shared_ptr<Capture>> captures;             // in progress
uint64_t next_ticket = 1;

const std::shared_ptr<Stream>& default_stream() {
  static const std::shared_ptr<Stream> stream(new Stream{true, {}, nullptr});
  return stream;
}
Event* event_of(void* handle) {
  const auto found = events.find(handle);
  return found == events.end() ? nullptr : found->second.get();
}
bool eager() { return number_from_environment("UQAC_HOST_CUDA_EAGER", 0) != 0; }
}  // namespace

std::shared_ptr<Stream> stream_of(void* handle) {
  if (uintptr_t(handle) <= 2) return default_stream();  // null, legacy and per-thread default
  const auto found = streams.find(handle);
  return found == streams.end() ? nullptr : found->second;
}

Result run_until(Stream& stream, uint64_t ticket) {
  while (!stream.queue.empty() && stream.queue.front().ticket <= ticket) {
    for (size_t i = 1; i < std::min(stream.queue.size(), EARLY + 1) && stream.queue[i - 1].work.lets_next_begin; ++i) {
      Queued& next = stream.queue[i];
      if (!next.work.begin) break;
      if (!next.early) next.early = next.work.begin();
    }
    const Queued front = std::move(stream.queue.front());
    stream.queue.pop_front();
    if (const Result result = front.work.run(front.early)) {
      set_fault(result);
      return result;
    }
  }
  return SUCCESS;
}
Result run_all(Stream& stream) { return run_until(stream, UINT64_MAX); }

Result run_everything() {
  Result first = run_all(*default_stream());
  for (const auto& [handle, stream] : streams)
    if (const Result result = run_all(*stream)) first = first ? first : result;
  return first;
}

// Work on the default stream follows all earlier work on blocking streams, and precedes all later
// work.
static Result settle_default_order(const std::shared_ptr<Stream>& stream) {
  if (!stream->blocking) return SUCCESS;
  if (stream != default_stream()) return run_all(*default_stream());
  for (const auto& [handle, other] : streams)
    if (other->blocking)
      if (const Result result = run_all(*other)) return result;
  return SUCCESS;
}

Result Graph::run(bool late) const {
  std::vector<bool> done(nodes.size());
  std::vector<ch_early*> early(nodes.size());
  const auto begin_next = [&](size_t i) {
    for (size_t count = 0; count < EARLY && nodes[i].work.lets_next_begin; ++count) {
      const auto follows = [&](const Node& node) {
        return node.work.begin && node.stream == nodes[i].stream && node.after == std::vector<size_t>{i};
      };
      const auto next = std::find_if(nodes.begin() + ptrdiff_t(i), nodes.end(), follows);
      if (next == nodes.end()) return;
      i = size_t(next - nodes.begin());
      if (!early[i]) early[i] = next->work.begin();
    }
  };
  const std::function<Result(size_t)> finish = [&](size_t i) -> Result {
    if (done[i]) return SUCCESS;
    done[i] = true;
    for (const size_t before : nodes[i].after)
      if (const Result result = finish(before)) return result;
    begin_next(i);
    return nodes[i].work.run(early[i]);
  };
  for (const bool all : {!late, true})  // finally, joined work that nothing follows
    for (size_t i = 0; i < nodes.size(); ++i)
      if (all || nodes[i].stream == origin)
        if (const Result result = finish(i)) return result;
  return SUCCESS;
}

Result enqueue(const std::shared_ptr<Stream>& stream, Work work) {
  if (stream->capture) {
    Capture& capture = *stream->capture;
    if (capture.invalid) return CAPTURE_INVALIDATED;
    std::vector<size_t>& before = capture.before[stream.get()];
    capture.graph->nodes.push_back({std::move(work), stream.get(), std::move(before)});
    before = {capture.graph->nodes.size() - 1};
    if (stream.get() != capture.origin) capture.unjoined.insert(stream.get());
    return SUCCESS;
  }
  if (const Result result = settle_default_order(stream)) return result;
  stream->queue.push_back({next_ticket++, std::move(work), nullptr});
  return eager() ? run_all(*stream) : SUCCESS;
}

Result invalidate(Capture& capture, Result why) {
  capture.invalid = true;
  return why;
}

Result refuse_in_capture() {
  for (const auto& capture : captures) {
    const bool theirs = capture->mode == 0 || (capture->mode == 1 && capture->thread == std::this_thread::get_id());
    if (theirs) return invalidate(*capture, CAPTURE_UNSUPPORTED);
  }
  return SUCCESS;
}

void forget_streams() {
  streams.clear();
  events.clear();
  graphs.clear();
  programs.clear();
  captures.clear();
  default_stream()->queue.clear();
}
}  // namespace driver

using namespace driver;

// ---- streams ----
CUDA_CALL cuStreamCreate(void** handle, unsigned flags) {
  return call_in_context(__func__, [&] {
    if (flags > 1) return INVALID_VALUE;
    const std::shared_ptr<Stream> stream(new Stream{flags == 0, {}, nullptr});
    streams[*handle = stream.get()] = stream;
    return SUCCESS;
  });
}
CUDA_CALL cuStreamCreateWithPriority(void** handle, unsigned flags, int) { return cuStreamCreate(handle, flags); }
CUDA_CALL cuCtxGetStreamPriorityRange(int* min, int* max) {
  return call_in_context(__func__, [&] { return *min = 0, *max = -5, SUCCESS; });
}
CUDA_CALL cuStreamDestroy_v2(void* handle) {
  return call_in_context(__func__, [&] {
    const auto found = streams.find(handle);
    if (found == streams.end()) return Result(INVALID_HANDLE);
    if (found->second->capture) invalidate(*found->second->capture, CAPTURE_INVALIDATED);
    const Result result = run_all(*found->second);
    streams.erase(found);
    return result;
  });
}
CUDA_CALL cuStreamSynchronize(void* handle) {
  return call_in_context(__func__, [&] {
    const auto stream = stream_of(handle);
    if (!stream) return Result(INVALID_HANDLE);
    if (stream->capture) return invalidate(*stream->capture, CAPTURE_UNSUPPORTED);
    if (const Result result = settle_default_order(stream)) return result;
    return run_all(*stream);
  });
}
CUDA_CALL cuStreamQuery(void* handle) {
  return call_in_context(__func__, [&] {
    const auto stream = stream_of(handle);
    if (!stream) return Result(INVALID_HANDLE);
    if (stream->capture) return invalidate(*stream->capture, CAPTURE_UNSUPPORTED);
    if (stream->queue.empty()) return Result(SUCCESS);
    const Result result = run_until(*stream, stream->queue.front().ticket);  // so that polling ends
    return result ? result : Result(NOT_READY);
  });
}

// Work from a library that accompanies this driver.
CUDA_CALL ch_enqueue(void* handle, void (*run)(void*), void* data) {
  return call_in_context(__func__, [&] {
    const auto stream = stream_of(handle);
    return stream ? enqueue(stream, [=] { return run(data), Result(SUCCESS); }) : INVALID_HANDLE;
  });
}

// ---- events ----
CUDA_CALL cuEventCreate(void** handle, unsigned flags) {
  return call_in_context(__func__, [&] {
    auto event = std::make_unique<Event>(Event{!(flags & 2), nullptr});
    *handle = event.get();
    events[*handle] = std::move(event);
    return SUCCESS;
  });
}
CUDA_CALL cuEventDestroy_v2(void* handle) {
  return call_in_context(__func__, [&] { return events.erase(handle) ? SUCCESS : INVALID_HANDLE; });
}
CUDA_CALL cuEventRecord(void* handle, void* stream_handle) {
  return call_in_context(__func__, [&] {
    Event* event = event_of(handle);
    const auto stream = stream_of(stream_handle);
    if (!event || !stream) return Result(INVALID_HANDLE);
    const auto record = std::make_shared<Record>();
    record->stream = stream;
    record->capture = stream->capture;
    if (stream->capture) record->nodes = stream->capture->before[stream.get()];
    event->record = record;
    if (stream->capture) return Result(stream->capture->invalid ? CAPTURE_INVALIDATED : SUCCESS);
    record->ticket = next_ticket;
    return enqueue(stream, [record] {
      record->time = std::chrono::steady_clock::now();
      record->done = true;
      record->stream = nullptr;
      return SUCCESS;
    });
  });
}
CUDA_CALL cuEventQuery(void* handle) {
  return call_in_context(__func__, [&] {
    Event* event = event_of(handle);
    if (!event) return Result(INVALID_HANDLE);
    const auto record = event->record;
    if (!record || record->done) return Result(SUCCESS);
    if (record->capture) return Result(CAPTURED_EVENT);
    const auto stream = record->stream;
    const Result result = run_until(*stream, stream->queue.front().ticket);  // so that polling ends
    return result ? result : Result(NOT_READY);
  });
}
CUDA_CALL cuEventSynchronize(void* handle) {
  return call_in_context(__func__, [&] {
    Event* event = event_of(handle);
    if (!event) return Result(INVALID_HANDLE);
    const auto record = event->record;
    if (!record || record->done) return Result(SUCCESS);
    if (record->capture) return Result(CAPTURED_EVENT);
    const auto stream = record->stream;
    return run_until(*stream, record->ticket);
  });
}
CUDA_CALL cuEventElapsedTime_v2(float* milliseconds, void* start, void* end) {
  return call_in_context(__func__, [&] {
    const Event *from = event_of(start), *to = event_of(end);
    if (!from || !to || !from->timing || !to->timing || !from->record || !to->record) return INVALID_HANDLE;
    if (!from->record->done || !to->record->done) return NOT_READY;
    *milliseconds = std::chrono::duration<float, std::milli>(to->record->time - from->record->time).count();
    return SUCCESS;
  });
}
CUDA_CALL cuStreamWaitEvent(void* stream_handle, void* handle, unsigned) {
  return call_in_context(__func__, [&] {
    Event* event = event_of(handle);
    const auto stream = stream_of(stream_handle);
    if (!event || !stream) return Result(INVALID_HANDLE);
    const auto record = event->record;
    if (!record) return Result(SUCCESS);
    if (stream->capture && stream->capture != record->capture)
      return invalidate(*stream->capture, CAPTURE_ISOLATION);
    if (record->capture) {
      if (record->capture->ended) return Result(CAPTURED_EVENT);
      stream->capture = record->capture;  // joins the capture; or the origin rejoins the other stream's work
      auto& before = record->capture->before[stream.get()];
      before.insert(before.end(), record->nodes.begin(), record->nodes.end());
      if (stream.get() == record->capture->origin) record->capture->unjoined.erase(record->stream.get());
      return Result(SUCCESS);
    }
    if (record->done) return Result(SUCCESS);
    return enqueue(stream, [record] {
      if (record->done) return Result(SUCCESS);
      const auto other = record->stream;
      return run_until(*other, record->ticket);
    });
  });
}

// ---- graphs ----
CUDA_CALL cuStreamBeginCapture_v2(void* handle, int mode) {
  return call_in_context(__func__, [&] {
    const auto stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    if (mode < 0 || mode > 2) return INVALID_VALUE;
    if (stream == default_stream()) return CAPTURE_UNSUPPORTED;
    if (stream->capture) return ILLEGAL_STATE;
    stream->capture.reset(new Capture{stream.get(), mode, std::this_thread::get_id()});
    captures.insert(stream->capture);
    return SUCCESS;
  });
}
CUDA_CALL cuStreamIsCapturing(void* handle, int* status) {
  return call_in_context(__func__, [&] {
    const auto stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    *status = !stream->capture ? 0 : stream->capture->invalid ? 2 : 1;
    return SUCCESS;
  });
}
CUDA_CALL cuStreamEndCapture(void* handle, void** graph) {
  return call_in_context(__func__, [&] {
    *graph = nullptr;
    const auto stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    const auto capture = stream->capture;
    if (!capture) return ILLEGAL_STATE;
    if (capture->origin != stream.get()) return CAPTURE_UNMATCHED;
    if (capture->mode != 2 && capture->thread != std::this_thread::get_id()) return CAPTURE_WRONG_THREAD;
    capture->ended = true;
    captures.erase(capture);
    for (const auto& [other_handle, other] : streams)
      if (other->capture == capture) other->capture = nullptr;
    if (capture->invalid) return CAPTURE_INVALIDATED;
    if (!capture->unjoined.empty()) return CAPTURE_UNJOINED;
    capture->graph->origin = capture->origin;
    graphs[*graph = capture->graph.get()] = capture->graph;
    return SUCCESS;
  });
}
CUDA_CALL cuGraphGetNodes(void* handle, void** nodes, size_t* count) {  // only their count
  return call_in_context(__func__, [&] {
    const auto found = graphs.find(handle);
    if (found == graphs.end()) return INVALID_HANDLE;
    *count = found->second->nodes.size();
    return nodes ? NOT_SUPPORTED : SUCCESS;
  });
}
CUDA_CALL cuGraphInstantiateWithFlags(void** program, void* handle, unsigned long long) {
  return call_in_context(__func__, [&] {
    const auto found = graphs.find(handle);
    if (found == graphs.end()) return INVALID_HANDLE;
    const auto copy = std::make_shared<const Graph>(*found->second);
    *program = const_cast<Graph*>(copy.get());
    programs[*program] = copy;
    return SUCCESS;
  });
}
CUDA_CALL cuGraphUpload(void* program, void*) {
  return call_in_context(__func__, [&] { return programs.count(program) ? SUCCESS : INVALID_HANDLE; });
}
CUDA_CALL cuGraphLaunch(void* program, void* handle) {
  return call_in_context(__func__, [&] {
    const auto found = programs.find(program);
    const auto stream = stream_of(handle);
    if (found == programs.end() || !stream) return Result(INVALID_HANDLE);
    return enqueue(stream, [graph = found->second] {
      static const uint64_t seed = number_from_environment("UQAC_HOST_CUDA_SEED", 0);
      return graph->run(seed % 2 == 0);
    });
  });
}
CUDA_CALL cuGraphExecDestroy(void* program) {
  return call_in_context(__func__, [&] { return programs.erase(program) ? SUCCESS : INVALID_HANDLE; });
}
CUDA_CALL cuGraphDestroy(void* graph) {
  return call_in_context(__func__, [&] { return graphs.erase(graph) ? SUCCESS : INVALID_HANDLE; });
}
