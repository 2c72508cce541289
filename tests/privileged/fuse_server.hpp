#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// The agent's part for the program `fuse`: starts it as a user for one image and mounts its file
/// system on a new directory. The destructor unmounts, and the server must end. A server that joins
/// another has no directory of its own.
class FuseServer {
 public:
  /// claimed: the server is told that it is mounted, but its device is not. held: it takes orders,
  /// but no requests before let_go().
  enum class Mount { yes, no, claimed, held };
  /// Returns the server's error about the image as an Error.
  static Result<FuseServer> start(const std::filesystem::path& image, std::uint64_t offset = 0,
                                  unsigned uid = 4242, Mount how = Mount::yes);
  /// Serves the image as a layer in place with this name, which is verified.
  static Result<FuseServer> start_in_place(const std::filesystem::path& image, const Digest& layer);
  FuseServer(FuseServer&& other) noexcept
      : root_(std::exchange(other.root_, {})),
        orders_(std::move(other.orders_)),
        pid_(std::exchange(other.pid_, -1)),
        held_(std::move(other.held_)) {}
  ~FuseServer();

  [[nodiscard]] const std::filesystem::path& root() const { return root_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Starts a second server of this mount, as another step's agent does.
  [[nodiscard]] Result<FuseServer> join(unsigned uid = 4242) const;
  /// Must be called by the thread that started the server.
  void let_go();
  /// Tells the server to finish. Returns as end().
  std::optional<int> finish();
  /// Detaches the file system. All its servers end then.
  void unmount() const;
  /// Unmounts. Returns the server's status as from waitpid(), empty if it has not ended within two
  /// seconds.
  std::optional<int> end();

 private:
  FuseServer() = default;
  Result<void> launch(int image, std::uint64_t offset, unsigned uid);
  Result<void> mount(unsigned uid, Mount how);
  void hold();
  std::optional<int> await_end();
  std::filesystem::path root_;
  UniqueFd device_;  ///< open until it is mounted
  UniqueFd orders_;
  pid_t pid_ = -1;
  std::vector<pid_t> held_;  ///< stopped threads that this process traces
};

/// Makes a squashfs of a directory with mksquashfs.
void make_squashfs(const std::filesystem::path& tree, const std::filesystem::path& image,
                   const std::string& options = "-comp zstd");

/// A directory for one test, removed by the destructor.
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
