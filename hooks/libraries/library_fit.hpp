#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/libraries/host_library.hpp"
#include "hooks/libraries/image_libraries.hpp"

namespace spc {

/// Whether it is one of UCX, whose libraries have no versions of symbols and one soname in all
/// releases: the functions that each has are all that can be compared, and those of two releases do
/// not go together.
bool is_of_ucx(std::string_view soname);
/// With what names of such functions begin.
inline constexpr char kFunctionsOfUcx[] = "uc";

/// Why a library of the node cannot be loaded in an image.
struct Misfit {
  enum class Kind { none, machine, no_glibc, old_glibc, missing, version, follows, breaks };
  Kind kind = Kind::none;
  std::string text;  ///< the node's libfabric.so.1 needs GLIBC_2.38, but the image's C library goes
                     ///< up to 2.31
  std::string of;    ///< missing, version, follows: the soname of what is needed

  explicit operator bool() const { return kind != Kind::none; }
};

/// Compares libraries of the node with an image, as its loader will when a program starts:
/// architecture, C library, other dependencies, and symbols by their versions. In `create` only;
/// once per start, so that small counts more than fast (cold).
class LibraryFit {
 public:
  /// `list`: the key in config.toml that can name what is missing. `elsewhere`: a library with an
  /// RPATH may find more than can be seen here. `spares`: leaves out what breaks a library of the
  /// image.
  LibraryFit(const HookContext& context, std::string list, bool elsewhere, bool spares = false)
      : image_(context), list_(std::move(list)), elsewhere_(elsewhere), spares_(spares) {}

  struct Choice {
    std::vector<const HostLibrary*> kept;
    std::vector<std::pair<const HostLibrary*, Misfit>> left_out;  ///< a cause before what it causes
  };
  /// Those that can be loaded in the image. A fallback is among them if the image has none and
  /// another needs it. Without one that does not fit, those that need it do not fit either.
  [[gnu::cold]] Choice choose(const std::vector<HostLibrary>& libraries);

  /// Versions that the image's library of this soname defines, but not this one: programs that need
  /// one would not start. Without those by which parts of one package know each other, such as
  /// IBVERBS_PRIVATE_34.
  [[gnu::cold]] std::set<std::string> lost_with(const HostLibrary& library);
  [[nodiscard]] ImageLibraries& image() { return image_; }

 private:
  [[gnu::cold]] Misfit against(const HostLibrary& library,
                               const std::vector<const HostLibrary*>& beside);
  [[gnu::cold]] Misfit against_need(const HostLibrary& library, const std::string& name,
                                    const std::vector<const HostLibrary*>& beside);
  [[gnu::cold]] std::set<std::string> all_lost_with(const HostLibrary& library);
  [[gnu::cold]] Misfit against_users(const HostLibrary& library,
                                     const std::vector<const HostLibrary*>& beside);
  [[gnu::cold]] Misfit against_other_release(const HostLibrary& library,
                                             const std::vector<const HostLibrary*>& beside);
  [[gnu::cold]] void add_fallbacks(const std::vector<HostLibrary>& libraries,
                                   std::vector<const HostLibrary*>& chosen);

  ImageLibraries image_;
  std::set<std::string> left_out_;
  std::string list_;
  bool elsewhere_, spares_;
};

}  // namespace spc
