#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// The agent's part for the program `fuse`: starts it as a user for one image and mounts what it
/// serves on a directory of its own. When this ends, the mount ends and the server must follow. One
/// that joins another has no directory of its own.
class FuseServer {
 public:
  /// claimed: the server is told so, and its device says otherwise; held: it takes orders, and no
  /// requests before let_go()
  enum class Mount { yes, no, claimed, held };
  /// What the server said against the image is the Error.
  static Result<FuseServer> start(const std::filesystem::path& image, std::uint64_t offset = 0,
                                  unsigned uid = 4242, Mount how = Mount::yes);
  FuseServer(FuseServer&& other) noexcept
      : root_(std::exchange(other.root_, {})),
        orders_(std::move(other.orders_)),
        pid_(std::exchange(other.pid_, -1)),
        held_(std::move(other.held_)) {}
  ~FuseServer();

  [[nodiscard]] const std::filesystem::path& root() const { return root_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// A second server of this one's mount, as another step's agent starts it.
  [[nodiscard]] Result<FuseServer> join(unsigned uid = 4242) const;
  /// By the thread that has started it.
  void let_go();
  /// Tells it to finish; as end().
  std::optional<int> finish();
  /// Detaches the file system; all its servers end then.
  void unmount() const;
  /// Unmounts; nothing if it is not gone within two seconds, else how it ended as waitpid() says.
  std::optional<int> end();

 private:
  FuseServer() = default;
  Result<void> launch(int image, std::uint64_t offset, unsigned uid);
  void hold();
  std::optional<int> await_end();
  std::filesystem::path root_;
  UniqueFd device_;  ///< until it is mounted
  UniqueFd orders_;
  pid_t pid_ = -1;
  std::vector<pid_t> held_;  ///< threads that we trace, and have stopped
};

/// A squashfs of a directory, made by mksquashfs.
void make_squashfs(const std::filesystem::path& tree, const std::filesystem::path& image,
                   const std::string& options = "-comp zstd");

/// A directory for one test, gone when this ends.
struct ImageScene {
  std::filesystem::path at;
  std::filesystem::path tree;
  std::filesystem::path image;

  ImageScene();
  ImageScene(const ImageScene&) = delete;
  ImageScene& operator=(const ImageScene&) = delete;
  ~ImageScene();
};

}  // namespace spc
