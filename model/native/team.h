// The threads that compute one pass together.
//
// OpenMP's wait for the next region by spinning, after a pass too: on a core that the event loop,
// the proxy and the client want meanwhile. And each gets its share before it runs, so that all wait
// for one that has no core just now. A team sleeps between passes, wakes once for each, and takes
// one piece after the other (docs/decisions/0019-a-lone-request.md). Who computes a piece changes
// no bit of it.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <omp.h>

#include <ATen/Parallel.h>

namespace headlight {

// A while of spinning, then of giving the core away to whoever wants it.
class Patience {
 public:
  void wait() {
    if (++waits_ > MOST) return std::this_thread::yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

 private:
  static constexpr int64_t MOST = 2000;  // some 30 microseconds
  int64_t waits_ = 0;
};

// A thread's own helpers; only that thread may call them.
class Team {
 public:
  static Team& own() {
    thread_local Team team;
    return team;
  }

  Team() = default;
  Team(const Team&) = delete;
  ~Team() {
    state_ = OVER;
    state_.notify_all();
    for (auto& helper : helpers_) helper.join();
  }

  // How many compute, the caller among them; 1 outside a pass.
  int64_t members() const { return members_; }

  void begin(int64_t members) {
    while (static_cast<int64_t>(helpers_.size()) + 1 < members) {
      helpers_.emplace_back([this] { help(); });
    }
    members_ = members;
    asleep_ = members - 1;
    state_ = AWAKE;
    state_.notify_one();  // who wakes the next
  }

  void end() {
    members_ = 1;
    state_ = ASLEEP;
  }

  // Call piece(i) for each i below count, in any thread; the first error is raised.
  template <typename Piece>
  void run(int64_t count, const Piece& piece) {
    piece_ = &piece;
    call_ = [](const void* each, int64_t i) { (*static_cast<const Piece*>(each))(i); };
    count_ = count;
    undone_.store(count, std::memory_order_relaxed);
    waiting_.store((waiting_.load(std::memory_order_relaxed) | LEFT) + 1 + count,
                   std::memory_order_release);
    while (take()) continue;
    for (Patience patience; undone_.load(std::memory_order_acquire);) patience.wait();
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  enum State : int { ASLEEP, AWAKE, OVER };
  static constexpr uint64_t LEFT = 0xffffffff;

  void help() {
    omp_set_num_threads(1);  // of this thread: what it calls of torch opens no region
    while (true) {
      state_.wait(ASLEEP);
      if (state_ == OVER) return;
      if (asleep_.fetch_sub(1) > 1) state_.notify_one();
      for (Patience patience; state_.load(std::memory_order_relaxed) == AWAKE;) {
        if (take()) patience = {}; else patience.wait();
      }
    }
  }

  // Compute one piece; tell whether there may be more.
  bool take() {
    auto waiting = waiting_.load(std::memory_order_acquire);
    if (!(waiting & LEFT)) return false;
    if (!waiting_.compare_exchange_weak(waiting, waiting - 1, std::memory_order_acquire)) return true;
    try {  // what run() has set stays until this piece is done
      call_(piece_, count_ - static_cast<int64_t>(waiting & LEFT));
    } catch (...) {
      const std::lock_guard hold(failing_);
      if (!error_) error_ = std::current_exception();
    }
    undone_.fetch_sub(1, std::memory_order_release);
    return true;
  }

  std::vector<std::thread> helpers_;
  int64_t members_ = 1;
  const void* piece_ = nullptr;
  void (*call_)(const void*, int64_t) = nullptr;
  int64_t count_ = 0;
  std::mutex failing_;
  std::exception_ptr error_;
  std::atomic<int> state_{ASLEEP};
  std::atomic<int64_t> asleep_{0};  // helpers that have not come to this pass
  // The number of the run above, and how many of its pieces nobody has taken: so that one who comes
  // late takes none of the next.
  alignas(64) std::atomic<uint64_t> waiting_{0};
  alignas(64) std::atomic<int64_t> undone_{0};
};

// While this is held, the cores that torch may use in this thread are a team's, if `brief`: torch's
// own kernels then run on one.
class Together {
 public:
  explicit Together(bool brief) : threads_(brief ? at::get_num_threads() : 1) {
    if (threads_ == 1) return;
    omp_set_num_threads(1);
    Team::own().begin(threads_);
  }
  Together(const Together&) = delete;
  ~Together() {
    if (threads_ == 1) return;
    Team::own().end();
    omp_set_num_threads(threads_);
  }

 private:
  const int threads_;
};

// Call some(first, last) for parts of 0 .. count of at least `least`, by the team or by OpenMP.
template <typename Some>
void share_out(int64_t count, int64_t least, const Some& some) {
  auto& team = Team::own();
  const auto parts = std::max<int64_t>(1, count / least);
  if (team.members() == 1) return at::parallel_for(0, count, least, some);
  if (parts == 1) return some(0, count);
  team.run(parts, [&](int64_t i) { some(count * i / parts, count * (i + 1) / parts); });
}

}  // namespace headlight
