#pragma once

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "hooks/hook.hpp"

/// A directory that acts as an image's root: hooks read it, and their edits are applied to it.
class ImageRoot {
 public:
  ImageRoot() {
    char name[] = "/tmp/spc-image-XXXXXX";
    root_ = ::mkdtemp(name);
  }
  ~ImageRoot() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  ImageRoot(const ImageRoot&) = delete;
  ImageRoot& operator=(const ImageRoot&) = delete;

  [[nodiscard]] std::string path(const std::string& inside) const { return root_ + inside; }
  void put(const std::string& inside, const std::string& bytes) const {
    std::filesystem::create_directories(std::filesystem::path(path(inside)).parent_path());
    std::filesystem::remove(path(inside));
    std::ofstream(path(inside), std::ios::binary) << bytes;
  }
  void link(const std::string& inside, const std::string& target) const {
    std::filesystem::create_directories(std::filesystem::path(path(inside)).parent_path());
    std::filesystem::remove(path(inside));
    std::filesystem::create_symlink(target, path(inside));
  }
  [[nodiscard]] std::string text(const std::string& inside) const {
    std::ifstream file(path(inside), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  /// Returns a context that contains only the files of this root.
  [[nodiscard]] spc::HookContext context() const {
    spc::HookContext context;
    context.open_in_image = [this](const char* inside, int flags) {
      const spc::UniqueFd root(::open(root_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
      open_how how{};
      how.flags =
          static_cast<std::uint64_t>(flags | O_CLOEXEC | ((flags & O_PATH) != 0 ? 0 : O_NONBLOCK));
      how.resolve = RESOLVE_NO_MAGICLINKS | RESOLVE_IN_ROOT;
      return spc::UniqueFd(
          static_cast<int>(::syscall(SYS_openat2, root.get(), inside, &how, sizeof how)));
    };
    return context;
  }

  /// Applies the edits as a start of the container does.
  void apply(const spc::Edits& edits) const {
    for (const auto& file : edits.files) put(file.path, file.content);
    for (const auto& made : edits.symlinks) link(made.path, made.target);
  }

 private:
  std::string root_;
};
