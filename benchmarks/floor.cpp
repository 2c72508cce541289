// bench-floor: the minimal work of every import of an image.
//
//   bench-floor PARALLEL URL...
//
// Fetches each layer, computes its SHA-256, inflates it with ISA-L, and computes the SHA-256 of the
// tar in a separate thread. The output is discarded. Processes PARALLEL layers at once, in the
// given order. Prints one line of JSON.

#include <curl/curl.h>
#include <isa-l/igzip_lib.h>
#include <openssl/evp.h>
#include <sys/resource.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace {

using Bytes = std::vector<std::uint8_t>;
constexpr std::size_t kPiece = 1 << 20;
constexpr std::size_t kQueueDepth = 4;

[[noreturn]] void die(const std::string& why) {
  std::fprintf(stderr, "bench-floor: %s\n", why.c_str());
  std::exit(1);
}

class Sha256 {
 public:
  Sha256() { EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr); }
  void add(std::span<const std::uint8_t> bytes) {
    EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size());
  }
  std::string hex() {
    unsigned char digest[32];
    EVP_DigestFinal_ex(context_.get(), digest, nullptr);
    std::string text;
    for (const auto byte : digest) {
      char two[3];
      std::snprintf(two, sizeof two, "%02x", byte);
      text += two;
    }
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_{EVP_MD_CTX_new(), EVP_MD_CTX_free};
};

/// Passes pieces to a thread that hashes them. Pieces are reused.
class HashThread {
 public:
  HashThread() : thread_([this] { run(); }) {}
  HashThread(const HashThread&) = delete;
  HashThread& operator=(const HashThread&) = delete;
  ~HashThread() {
    if (thread_.joinable()) finish();
  }

  Bytes empty_piece() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !free_.empty() || made_ < kQueueDepth; });
    if (free_.empty()) {
      ++made_;
      return Bytes(kPiece);
    }
    Bytes piece = std::move(free_.back());
    free_.pop_back();
    piece.resize(kPiece);
    return piece;
  }
  void give(Bytes piece) {
    const std::lock_guard lock(mutex_);
    full_.push_back(std::move(piece));
    changed_.notify_all();
  }
  void finish() {
    give({});  // an empty piece ends the thread
    thread_.join();
  }

 private:
  void run() {
    for (;;) {
      Bytes piece;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !full_.empty(); });
        piece = std::move(full_.front());
        full_.pop_front();
      }
      if (piece.empty()) return;
      sha_.add(piece);
      const std::lock_guard lock(mutex_);
      free_.push_back(std::move(piece));
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Bytes> full_;
  std::vector<Bytes> free_;
  std::size_t made_ = 0;
  Sha256 sha_;
  std::thread thread_;
};

/// A layer being fetched: data from curl is hashed and inflated at once.
class Layer {
 public:
  Layer() {
    isal_inflate_init(&state_);
    isal_gzip_header_init(&header_);
    state_.crc_flag = ISAL_GZIP;
  }

  static std::size_t on_data(char* data, std::size_t size, std::size_t count, void* self) {
    static_cast<Layer*>(self)->take({reinterpret_cast<std::uint8_t*>(data), size * count});
    return size * count;
  }

  void finish(const std::string& url) {
    if (!piece_.empty()) {
      piece_.resize(filled_);
      if (filled_ > 0) tar_hash_.give(std::move(piece_));
    }
    tar_hash_.finish();
    if (state_.block_state != ISAL_BLOCK_FINISH) die(url + ": the gzip stream does not end");
    if (!url.ends_with(blob_hash_.hex())) die(url + ": the digest differs");
  }

  [[nodiscard]] std::uint64_t compressed() const { return compressed_; }
  [[nodiscard]] std::uint64_t uncompressed() const { return uncompressed_; }

 private:
  void take(std::span<std::uint8_t> bytes) {
    compressed_ += bytes.size();
    blob_hash_.add(bytes);
    state_.next_in = bytes.data();
    state_.avail_in = static_cast<std::uint32_t>(bytes.size());
    while (state_.block_state != ISAL_BLOCK_FINISH) {
      if (piece_.empty()) {
        piece_ = tar_hash_.empty_piece();
        filled_ = 0;
      }
      state_.next_out = piece_.data() + filled_;
      state_.avail_out = static_cast<std::uint32_t>(piece_.size() - filled_);
      const auto room = state_.avail_out;
      if (isal_inflate(&state_) != ISAL_DECOMP_OK) die("a blob is not gzip");
      filled_ += room - state_.avail_out;
      uncompressed_ += room - state_.avail_out;
      if (filled_ < piece_.size()) break;  // all input is consumed
      tar_hash_.give(std::move(piece_));
      piece_.clear();
    }
  }

  inflate_state state_{};
  isal_gzip_header header_{};
  Sha256 blob_hash_;
  HashThread tar_hash_;
  Bytes piece_;
  std::size_t filled_ = 0;
  std::uint64_t compressed_ = 0;
  std::uint64_t uncompressed_ = 0;
};

struct Totals {
  std::atomic<std::uint64_t> compressed{0};
  std::atomic<std::uint64_t> uncompressed{0};
};

void pull(const std::string& url, Totals& totals) {
  Layer layer;
  const std::unique_ptr<CURL, void (*)(CURL*)> request(curl_easy_init(), curl_easy_cleanup);
  curl_easy_setopt(request.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(request.get(), CURLOPT_FAILONERROR, 1L);
  curl_easy_setopt(request.get(), CURLOPT_BUFFERSIZE, 512L * 1024);
  curl_easy_setopt(request.get(), CURLOPT_WRITEFUNCTION, Layer::on_data);
  curl_easy_setopt(request.get(), CURLOPT_WRITEDATA, &layer);
  const CURLcode code = curl_easy_perform(request.get());
  if (code != CURLE_OK) die("fetch " + url + ": " + curl_easy_strerror(code));
  layer.finish(url);
  totals.compressed += layer.compressed();
  totals.uncompressed += layer.uncompressed();
}

double now_s() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

double cpu_s() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

int main(int argc, char** argv) {
  const int parallel = argc > 2 ? std::atoi(argv[1]) : 0;
  if (parallel < 1) {
    std::fputs("usage: bench-floor PARALLEL URL...\n", stderr);
    return 2;
  }
  curl_global_init(CURL_GLOBAL_DEFAULT);
  const std::vector<std::string> urls(argv + 2, argv + argc);
  const double begin = now_s();
  Totals totals;
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> pullers;
  for (int i = 0; i < parallel; ++i) {
    pullers.emplace_back([&] {
      for (std::size_t mine = next++; mine < urls.size(); mine = next++) pull(urls[mine], totals);
    });
  }
  for (auto& puller : pullers) puller.join();
  std::printf("{\"wall\": %.4f, \"cpu\": %.4f, \"compressed\": %llu, \"uncompressed\": %llu}\n",
              now_s() - begin, cpu_s(), static_cast<unsigned long long>(totals.compressed),
              static_cast<unsigned long long>(totals.uncompressed));
  return 0;
}
