#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace spc::test {

/// Storage of a file's content, with the format's numbers.
enum class Stored : std::uint16_t { plain = 0, compressed = 1, inlined = 2, chunks = 4 };

/// An inode of an image, changeable before the image is made. Its values are not checked.
struct ErofsNode {
  struct Attribute {
    std::uint8_t prefix = 1;
    std::string name;
    std::string value;
  };
  std::uint16_t mode = 0;
  std::uint8_t type = 0;  ///< type in directory entries
  Stored stored = Stored::inlined;
  std::string content;  ///< or a link's target; generated for a directory
  std::vector<Attribute> attributes;
  std::map<std::string, std::shared_ptr<ErofsNode>> entries;

  ErofsNode& with(std::string name, std::string value, std::uint8_t prefix = 1) {
    attributes.push_back({.prefix = prefix, .name = std::move(name), .value = std::move(value)});
    return *this;
  }

  // Known after the image is made.
  std::uint64_t nid = 0;
  std::uint64_t parent = 0;
  std::uint32_t links = 0;
  std::uint64_t size = 0;
  std::uint64_t block = 0;  ///< its first block
  std::string data;         ///< whole blocks of content
  std::string behind;       ///< inode and attributes
  std::string path;
};

/// An image with the positions of its parts.
struct ErofsImage {
  using Range = std::pair<std::size_t, std::size_t>;  ///< begin and end

  std::string bytes;
  std::map<std::string, std::size_t, std::less<>> inodes;  ///< by path; the root: ""
  std::map<std::string, std::size_t, std::less<>>
      behind;  ///< data after inode and attributes, or blocks of entries and targets
  std::map<std::string, std::size_t, std::less<>> entries;  ///< by path; and "d/." and "d/.."
  std::map<std::string, std::size_t, std::less<>> names;    ///< same keys
  std::vector<Range> tables;                                ///< everything except file data
  std::vector<Range> open;                                  ///< parts of the tables that may differ

  /// Recomputes the checksum.
  ErofsImage& seal();
  template <typename Number>
  ErofsImage& set(std::size_t at, Number number) {
    bytes.replace(at, sizeof number,
                  std::string_view(reinterpret_cast<const char*>(&number), sizeof number));
    return *this;
  }
  [[nodiscard]] bool is_open(std::size_t at) const;
};

/// A builder of EROFS images in the form that the verifier accepts, written from its description.
class ErofsTree {
 public:
  struct Options {
    bool is_compressed = true;
    std::size_t directory_fill = 4096;  ///< bytes used in a block of entries
  };

  ErofsTree();
  ErofsNode& directory(const std::string& path, std::uint16_t permissions = 0755);
  ErofsNode& file(const std::string& path, std::string content, Stored stored = Stored::inlined,
                  std::uint16_t permissions = 0644);
  ErofsNode& symlink(const std::string& path, std::string target);
  ErofsNode& whiteout(const std::string& path);
  ErofsNode& fifo(const std::string& path);
  void hard_link(const std::string& path, const std::string& existing);
  ErofsNode& at(const std::string& path);

  /// Must be called only once.
  [[nodiscard]] ErofsImage image(Options options);
  [[nodiscard]] ErofsImage image() { return image({}); }

 private:
  using Node = std::shared_ptr<ErofsNode>;

  Node find(const std::string& path);
  ErofsNode& add(const std::string& path, ErofsNode node);

  Node root_;
};

/// Returns a tree with each kind of inode. With `large`, also with content longer than a block.
ErofsTree erofs_sample(bool large = true);

}  // namespace spc::test
