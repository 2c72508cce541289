#include "unit/image/samples/erofs_tree.hpp"

#include <lz4.h>

#include <algorithm>
#include <cstring>
#include <string_view>

namespace spc::test {
namespace {

constexpr std::size_t kErofsBlockSize = 4096, kErofsUnit = 128 << 10, kErofsUnitBlocks = 32;
constexpr std::uint64_t kRootNid = 40, kRootRoom = 4096 - 32 * kRootNid;

std::uint64_t ceiling(std::uint64_t number, std::uint64_t unit) { return (number + unit - 1) / unit; }

std::uint32_t checksum(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1U ^ ((crc & 1U) != 0 ? 0x82f63b78U : 0U);
  }
  return crc;
}

/// Numbers in bytes, which grow as needed.
template <typename Number>
void put_number(std::string& bytes, std::size_t at, Number number) {
  if (bytes.size() < at + sizeof number) bytes.resize(at + sizeof number);
  std::memcpy(bytes.data() + at, &number, sizeof number);
}

class ErofsBuilder {
 public:
  explicit ErofsBuilder(bool lz4) : lz4_(lz4) {}

  std::string build(ErofsNode& root) {
    image_.resize(kErofsBlockSize);
    root.nid = kRootNid;
    number(root, kRootNid);
    for (ErofsNode* node : nodes_) write(*node);
    put_super();
    return std::move(image_);
  }

 private:
  // Places first: directories before what is in them, so that all nids are known when directories are written.
  void number(ErofsNode& node, std::uint64_t parent) {
    nodes_.push_back(&node);
    parents_[&node] = parent;
    if (S_ISDIR(node.mode)) node.links = 2;
    if (node.nid != kRootNid) node.nid = room(record_size(node)) / 32;
    for (auto& [name, child] : node.entries) {
      if (S_ISDIR(child->mode)) ++node.links;
      if (!S_ISDIR(child->mode) && child->links++ != 0) continue;
      number(*child, node.nid);
    }
  }

  std::size_t room(std::size_t size) {
    if (size > kErofsBlockSize || size > records_end_ - records_at_) {
      records_at_ = image_.size();
      records_end_ = records_at_ + ceiling(size, kErofsBlockSize) * kErofsBlockSize;
      image_.resize(records_end_);
    }
    const std::size_t at = records_at_;
    records_at_ += ceiling(size, 32) * 32;
    return at;
  }

  static std::string attributes(const ErofsNode& node) {
    if (node.xattrs.empty()) return {};
    std::string bytes(12, '\0');
    for (const auto& [name, value] : node.xattrs) {
      const bool is_user = name.starts_with("user.");
      const std::string rest = name.substr(name.find('.') + 1);
      bytes += static_cast<char>(rest.size());
      bytes += is_user ? '\1' : '\4';
      put_number(bytes, bytes.size(), static_cast<std::uint16_t>(value.size()));
      bytes += rest + value;
      bytes.resize(ceiling(bytes.size(), 4) * 4);
    }
    return bytes;
  }

  std::string listing(const ErofsNode& node) {
    struct Dirent {
      std::uint64_t nid;
      char type;
    };
    std::map<std::string, Dirent> all{{".", {node.nid, 2}}, {"..", {parents_[&node], 2}}};
    for (const auto& [name, child] : node.entries) {
      static const std::map<mode_t, char> kTypes{{S_IFREG, 1}, {S_IFDIR, 2}, {S_IFCHR, 3}, {S_IFBLK, 4}, {S_IFIFO, 5}, {S_IFLNK, 7}};
      all[name] = {child->nid, kTypes.at(child->mode & S_IFMT)};
    }
    std::string bytes;
    for (auto next = all.begin(); next != all.end();) {
      auto end = next;
      std::size_t used = 0, count = 0;
      for (; end != all.end() && used + 12 + end->first.size() <= kErofsBlockSize; ++end, ++count) used += 12 + end->first.size();
      std::string block(12 * count, '\0');
      for (std::size_t at = 0; next != end; ++next, at += 12) {
        put_number(block, at, next->second.nid);
        put_number(block, at + 8, static_cast<std::uint16_t>(block.size()));
        block[at + 10] = next->second.type;
        block += next->first;
      }
      bytes.resize(ceiling(bytes.size(), kErofsBlockSize) * kErofsBlockSize);
      bytes += block;
    }
    return bytes;
  }

  std::string content(const ErofsNode& node) { return S_ISDIR(node.mode) ? listing(node) : node.data; }

  static bool in_units(const ErofsNode& node) {
    return node.stored == ErofsNode::Stored::chunks || node.stored == ErofsNode::Stored::compressed;
  }

  std::size_t record_size(const ErofsNode& node) {
    const std::size_t head = 64 + attributes(node).size(), size = content(node).size();
    if (node.stored == ErofsNode::Stored::chunks) return head + 4 * ceiling(size, kErofsUnit);
    if (node.stored == ErofsNode::Stored::compressed) return ceiling(head, 8) * 8 + 16 + 8 * ceiling(size, kErofsBlockSize);
    return is_inline(node, head, size) ? head + size : head;
  }

  static bool is_inline(const ErofsNode& node, std::size_t head, std::size_t size) {
    return node.stored == ErofsNode::Stored::automatic && size != 0 && head + size <= (node.nid == kRootNid ? kRootRoom : kErofsBlockSize);
  }

  /// Appends blocks, and zeros behind them; the number of the first.
  std::uint32_t append(std::string_view bytes) {
    const std::size_t at = image_.size();
    image_.append(bytes).resize(at + ceiling(bytes.size(), kErofsBlockSize) * kErofsBlockSize);
    return static_cast<std::uint32_t>(at / kErofsBlockSize);
  }

  void write(ErofsNode& node) {
    const std::string xattrs = attributes(node), bytes = content(node);
    const std::size_t at = node.nid * 32, behind = at + 64 + xattrs.size();
    std::uint16_t layout = 0;
    std::uint32_t start = node.device;
    node.data_at = image_.size();
    if (node.stored == ErofsNode::Stored::chunks) {
      layout = 4;
      start = 5;
      write_chunks(node, behind);
    } else if (node.stored == ErofsNode::Stored::compressed) {
      layout = 1;
      start = write_compressed(node, ceiling(behind, 8) * 8);
    } else if (is_inline(node, 64 + xattrs.size(), bytes.size())) {
      layout = 2;
      node.data_at = behind;
      image_.replace(behind, bytes.size(), bytes);
    } else if (!bytes.empty()) {
      start = append(bytes);
    }
    put_number(image_, at, static_cast<std::uint16_t>(1 | layout * 2));
    put_number(image_, at + 2, static_cast<std::uint16_t>(xattrs.empty() ? 0 : (xattrs.size() - 12) / 4 + 1));
    put_number(image_, at + 4, static_cast<std::uint16_t>(node.mode));
    put_number(image_, at + 8, std::uint64_t{bytes.size()});
    put_number(image_, at + 16, start);
    put_number(image_, at + 32, std::uint64_t{node.mtime});
    put_number(image_, at + 44, node.links);
    image_.replace(at + 64, xattrs.size(), xattrs);
  }

  void write_chunks(ErofsNode& node, std::size_t map) {
    node.index_at = map;
    for (std::size_t done = 0; done < node.data.size(); done += kErofsUnit, map += 4) {
      const auto unit = std::string_view(node.data).substr(done, kErofsUnit);
      const bool is_hole = unit.find_first_not_of('\0') == std::string_view::npos;
      const std::uint32_t block = is_hole ? ~0U : append(unit);
      put_number(image_, map, block);
    }
  }

  /// Returns how many blocks there are.
  std::uint32_t write_compressed(ErofsNode& node, std::size_t index) {
    node.index_at = index;
    put_number(image_, index + 4, std::uint16_t{2});
    std::size_t entry = index + 16;
    const auto add = [&](std::uint16_t type, std::uint16_t offset, std::uint32_t value) {
      put_number(image_, entry, type);
      put_number(image_, entry + 2, offset);
      put_number(image_, entry + 4, value);
      entry += 8;
    };
    std::uint32_t sum = 0;
    for (std::size_t done = 0; done < node.data.size(); done += kErofsUnit) {
      const auto unit = std::string_view(node.data).substr(done, kErofsUnit);
      std::string packed(static_cast<std::size_t>(LZ4_compressBound(static_cast<int>(unit.size()))), '\0');
      packed.resize(static_cast<std::size_t>(
          LZ4_compress_default(unit.data(), packed.data(), static_cast<int>(unit.size()), static_cast<int>(packed.size()))));
      const auto plain = static_cast<std::uint32_t>(ceiling(unit.size(), kErofsBlockSize));
      const auto blocks = static_cast<std::uint32_t>(ceiling(packed.size(), kErofsBlockSize));
      if (blocks >= plain) {
        const std::uint32_t first = append(unit);
        for (std::uint32_t block = 0; block < plain; ++block) add(0, 0, first + block);
        sum += plain;
        continue;
      }
      packed.insert(0, blocks * kErofsBlockSize - packed.size(), '\0');
      const auto whole = static_cast<std::uint32_t>(unit.size() / kErofsBlockSize);
      add(1, 0, append(packed));
      for (std::uint32_t k = 1; k < whole; ++k) add(2, 0, (k == 1 ? 0x800 | blocks : k) | (whole - k) << 16U);
      if (const auto rest = static_cast<std::uint16_t>(unit.size() % kErofsBlockSize); rest != 0) add(0, rest, 0);
      sum += blocks;
    }
    return sum;
  }

  void put_super() {
    const auto blocks = static_cast<std::uint32_t>(image_.size() / kErofsBlockSize);
    put_number(image_, 1024, 0xe0f5e1e2U);
    put_number(image_, 1032, 3U);
    put_number(image_, 1036, std::uint8_t{12});
    put_number(image_, 1038, static_cast<std::uint16_t>(kRootNid));
    put_number(image_, 1040, std::uint64_t{nodes_.size()});
    put_number(image_, 1060, blocks);
    put_number(image_, 1104, lz4_ ? 7U : 4U);
    if (lz4_) {
      put_number(image_, 1108, std::uint16_t{1});
      put_number(image_, 1152, std::uint16_t{14});
      put_number(image_, 1154, std::uint16_t{65535});
      put_number(image_, 1156, std::uint16_t{32});
    }
    put_number(image_, 1028, checksum(std::string_view(image_).substr(1024, kErofsBlockSize - 1024)));
  }

  const bool lz4_;
  std::string image_;
  std::size_t records_at_ = 0, records_end_ = 0;
  std::vector<ErofsNode*> nodes_;
  std::map<const ErofsNode*, std::uint64_t> parents_;
};

}  // namespace

ErofsTree erofs_directory(std::map<std::string, ErofsTree> entries) {
  return std::make_shared<ErofsNode>(ErofsNode{.mode = S_IFDIR | 0755, .entries = std::move(entries)});
}

ErofsTree erofs_file(std::string data, ErofsNode::Stored stored) {
  return std::make_shared<ErofsNode>(ErofsNode{.data = std::move(data), .stored = stored});
}

ErofsTree erofs_link(std::string target) {
  return std::make_shared<ErofsNode>(ErofsNode{.mode = S_IFLNK | 0777, .data = std::move(target)});
}

ErofsTree erofs_special(mode_t mode, std::uint32_t device) {
  return std::make_shared<ErofsNode>(ErofsNode{.mode = mode, .device = device});
}

std::string erofs_image(const ErofsTree& root, bool lz4) { return ErofsBuilder(lz4).build(*root); }

}  // namespace spc::test
