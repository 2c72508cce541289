#include "image/peers/public_statement.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <memory>

#include "base/sha256.hpp"

namespace spc {
namespace {

constexpr int kSeconds = 60;
constexpr std::string_view kMagic = "spank-container: public ";

/// libmunge, which comes with Slurm's auth/munge: looked for when it is needed, since clusters with
/// auth/slurm have none.
class Munge {
 public:
  static const Munge* find() {
    static const Munge munge;
    return munge.is_whole() ? &munge : nullptr;
  }
  [[nodiscard]] Result<std::string> encode(const std::string& text) const {
    const auto context = new_context();
    char* made = nullptr;
    if (!context || set_(context.get(), kTtl, kSeconds) != 0 ||
        set_(context.get(), kUidRestriction, ::geteuid()) != 0)
      return Error(ErrorKind::unavailable, "munge: cannot be set up");
    const int failed = encode_(&made, context.get(), text.data(), static_cast<int>(text.size()));
    const std::unique_ptr<char, void (*)(void*)> freed(made, &std::free);
    if (failed != 0 || made == nullptr)
      return Error(ErrorKind::unavailable, std::string("munge: ") + name_(failed));
    return std::string(made);
  }
  /// What this process's user has signed. One that was read on this node before, for another step,
  /// is as good.
  [[nodiscard]] Result<std::string> decode(const std::string& credential) const {
    void* text = nullptr;
    int size = 0;
    uid_t uid = 0;
    gid_t gid = 0;
    const int failed = decode_(credential.c_str(), nullptr, &text, &size, &uid, &gid);
    const std::unique_ptr<void, void (*)(void*)> freed(text, &std::free);
    if ((failed != 0 && failed != kReplayed) || text == nullptr || size <= 0)
      return Error(ErrorKind::refused, std::string("munge: ") + name_(failed));
    if (uid != ::geteuid())
      return Error(ErrorKind::refused, "signed by user " + std::to_string(uid));
    return std::string(static_cast<const char*>(text), static_cast<std::size_t>(size));
  }

 private:
  // <munge.h>, whose numbers are those of libmunge.so.2
  static constexpr int kTtl = 4, kUidRestriction = 9, kReplayed = 17;
  using Context = std::unique_ptr<void, void (*)(void*)>;

  Munge() : library_(::dlopen("libmunge.so.2", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    load(create_, "munge_ctx_create");
    load(destroy_, "munge_ctx_destroy");
    load(set_, "munge_ctx_set");
    load(encode_, "munge_encode");
    load(decode_, "munge_decode");
    load(name_, "munge_strerror");
  }
  template <typename Function>
  void load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
  }
  [[nodiscard]] bool is_whole() const {
    return create_ && destroy_ && set_ && encode_ && decode_ && name_;
  }
  [[nodiscard]] Context new_context() const { return {create_(), destroy_}; }

  void* library_;  // stays open
  void* (*create_)() = nullptr;
  void (*destroy_)(void*) = nullptr;
  int (*set_)(void*, int, ...) = nullptr;
  int (*encode_)(char**, void*, const void*, int) = nullptr;
  int (*decode_)(const char*, void*, void**, int*, uid_t*, gid_t*) = nullptr;
  const char* (*name_)(int) = nullptr;
};

}  // namespace

Digest PublicStatement::name() const {
  return Sha256::of(std::string(kMagic) + place + "@" + top.str());
}

std::string PublicStatement::text() const {
  return std::string(kMagic) + place + "@" + top.str() + " " + std::to_string(asked_at);
}

Result<std::string> sign(const PublicStatement& statement) {
  const Munge* const munge = Munge::find();
  if (munge == nullptr) return Error(ErrorKind::unavailable, "libmunge.so.2: not here");
  return munge->encode(statement.text());
}

Result<PublicStatement> read_statement(const std::string& place, const Digest& top,
                                       const std::string& is_signed) {
  const Munge* const munge = Munge::find();
  if (munge == nullptr) return Error(ErrorKind::unavailable, "libmunge.so.2: not here");
  const std::string said = SPC_TRY(munge->decode(is_signed));
  PublicStatement statement{.place = place, .top = top};
  const std::size_t space = std::min(said.rfind(' '), said.size());
  const char* const end = said.data() + said.size();
  const auto number =
      std::from_chars(said.data() + std::min(space + 1, said.size()), end, statement.asked_at);
  if (number.ptr != end || statement.text() != said)
    return Error(ErrorKind::refused, "is about something else");
  statement.asked_at = std::min<std::int64_t>(statement.asked_at, std::time(nullptr));
  return statement;
}

}  // namespace spc
