#include "unit/image/samples/erofs_image.hpp"

#include <lz4.h>
#include <sys/stat.h>

#include <algorithm>

#include "unit/image/samples/layer_tar.hpp"
#include "unit/image/samples/verify_parts.hpp"

namespace spc::test {
namespace {

constexpr std::size_t kErofsBlock = 4096;
constexpr std::size_t kErofsUnit = 131072;
constexpr std::size_t kRootPlace = 1280;

std::size_t round_up(std::size_t number, std::size_t to) { return (number + to - 1) / to * to; }

template <typename Number>
void append(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

std::string whole_blocks(std::string bytes) {
  bytes.resize(round_up(bytes.size(), kErofsBlock));
  return bytes;
}

void append_entry(std::string& index, unsigned type, std::size_t offset, std::uint32_t value) {
  append(index, static_cast<std::uint16_t>(type));
  append(index, static_cast<std::uint16_t>(offset));
  append(index, value);
}

/// Builds the parts of an image and lays them out.
class Maker {
 public:
  explicit Maker(ErofsTree::Options options) : options_(options) {}

  ErofsImage make(ErofsNode& root) {
    image_.bytes.assign(kErofsBlock, '\0');
    number_names(root, root);
    for (ErofsNode* node : nodes_) place_data(*node);
    std::size_t end = image_.bytes.size();
    for (ErofsNode* node : nodes_) place_record(*node, end);
    image_.bytes.resize(round_up(end, kErofsBlock));
    for (ErofsNode* node : nodes_) place_text(*node);
    for (ErofsNode* node : nodes_) write(*node);
    write_super();
    return std::move(image_.seal());
  }

 private:
  struct Named {
    std::string name;
    std::uint64_t nid;
    std::uint8_t type;
  };

  /// Numbers directories before their content, and an inode with several names once.
  void number_names(ErofsNode& node, ErofsNode& parent) {
    nodes_.push_back(&node);
    parents_[&node] = &parent;
    node.links = 2;
    for (const auto& [name, child] : node.entries) {
      if (child->type == 2) {
        child->path = node.path.empty() ? name : node.path + "/" + name;
        ++node.links;
        number_names(*child, node);
      } else if (child->links++ == 0) {
        child->path = node.path.empty() ? name : node.path + "/" + name;
        nodes_.push_back(child.get());
      }
    }
  }

  [[nodiscard]] std::uint32_t next_block() const {
    return static_cast<std::uint32_t>(image_.bytes.size() / kErofsBlock);
  }

  std::uint32_t append_data(std::string bytes) {
    const auto block = next_block();
    image_.bytes += whole_blocks(std::move(bytes));
    return block;
  }

  void place_data(ErofsNode& node) {
    node.size = node.content.size();
    if (node.type != 1 || node.stored == Stored::inlined) return;
    if (node.stored == Stored::plain) {
      node.block = node.size == 0 ? 0 : append_data(node.content);
    } else if (node.stored == Stored::chunks) {
      node.block = 5;
      for (std::size_t at = 0; at < node.size; at += kErofsUnit) {
        const auto piece = node.content.substr(at, kErofsUnit);
        const bool is_hole = piece.find_first_not_of('\0') == std::string::npos;
        append(node.behind, is_hole ? std::uint32_t{0xffffffff} : append_data(piece));
      }
    } else {
      place_clusters(node);
    }
  }

  void place_clusters(ErofsNode& node) {
    const auto first = next_block();
    node.behind.assign(round_up(attributes_of(node).size(), 8) - attributes_of(node).size(), '\0');
    append(node.behind, std::uint32_t{0});
    append(node.behind, std::uint32_t{2});
    append(node.behind, std::uint64_t{0});
    for (std::size_t at = 0; at < node.size; at += kErofsUnit)
      place_unit(node.content.substr(at, kErofsUnit), node.behind);
    node.block = next_block() - first;
  }

  void place_unit(const std::string& unit, std::string& index) {
    const std::size_t entries = round_up(unit.size(), kErofsBlock) / kErofsBlock;
    std::string packed(LZ4_COMPRESSBOUND(kErofsUnit), '\0');
    packed.resize(static_cast<std::size_t>(LZ4_compress_default(unit.data(), packed.data(),
                                                                static_cast<int>(unit.size()),
                                                                static_cast<int>(packed.size()))));
    const std::size_t blocks = round_up(packed.size(), kErofsBlock) / kErofsBlock;
    if (blocks >= entries) {
      const auto block = append_data(unit);
      for (std::uint32_t i = 0; i < entries; ++i) append_entry(index, 0, 0, block + i);
      return;
    }
    append_entry(index, 1, 0,
                 append_data(std::string(blocks * kErofsBlock - packed.size(), '\0') + packed));
    const std::size_t whole = unit.size() / kErofsBlock;
    for (std::size_t i = 1; i < whole; ++i) {
      append_entry(index, 2, 0,
                   static_cast<std::uint32_t>((i == 1 ? 0x800 | blocks : i) | (whole - i) << 16U));
    }
    if (unit.size() % kErofsBlock != 0) append_entry(index, 0, unit.size() % kErofsBlock, 0);
  }

  /// Returns the attributes. `free` marks the bytes that may differ.
  static std::string attributes_of(const ErofsNode& node, std::string* free = nullptr) {
    if (node.attributes.empty()) return {};
    std::string bytes(12, '\0');
    if (free != nullptr) free->assign(12, '\0');
    for (const auto& attribute : node.attributes) {
      append(bytes, static_cast<std::uint8_t>(attribute.name.size()));
      append(bytes, attribute.prefix);
      append(bytes, static_cast<std::uint16_t>(attribute.value.size()));
      bytes += attribute.name + attribute.value;
      const std::size_t end = bytes.size();
      bytes.resize(round_up(bytes.size(), 4));
      if (free == nullptr) continue;
      const char is_free = attribute.name == "overlay.opaque" ? '\0' : 'x';
      *free += std::string{is_free, '\0', is_free, is_free};
      free->resize(end, is_free);
      free->resize(bytes.size());
    }
    return bytes;
  }

  [[nodiscard]] static bool is_text(const ErofsNode& node) {
    return node.type == 2 || node.type == 7;
  }

  void place_record(ErofsNode& node, std::size_t& end) {
    const bool is_root = node.path.empty();
    const std::size_t fixed = 64 + attributes_of(node).size();
    if (node.type == 2) node.content = entries_of(node);  // of this size, but without inode numbers
    if (is_text(node)) {
      node.size = node.content.size();
      node.stored = fixed + node.size <= kErofsBlock - (is_root ? kRootPlace : 0) ? Stored::inlined
                                                                                  : Stored::plain;
    }
    const std::size_t size =
        fixed + node.behind.size() + (node.stored == Stored::inlined ? node.size : 0);
    std::size_t place = is_root ? kRootPlace : round_up(end, 32);
    if (!is_root && place % kErofsBlock + size > kErofsBlock) place = round_up(place, kErofsBlock);
    node.nid = place / 32;
    image_.inodes[node.path] = place;
    image_.behind[node.path] = place + fixed;
    image_.tables.emplace_back(place, place + size);
    if (!is_root) end = place + size;
  }

  void place_text(ErofsNode& node) {
    if (!is_text(node) || node.stored == Stored::inlined) return;
    node.block = append_data(std::string(node.size, '\0'));
    image_.behind[node.path] = node.block * kErofsBlock;
    image_.tables.emplace_back(node.block * kErofsBlock, node.block * kErofsBlock + node.size);
  }

  std::string entries_of(ErofsNode& node) {
    std::map<std::string, Named> all;
    for (const auto& [name, child] : node.entries)
      all[name] = {.name = name, .nid = child->nid, .type = child->type};
    all["."] = {.name = ".", .nid = node.nid, .type = 2};
    all[".."] = {.name = "..", .nid = parents_[&node]->nid, .type = 2};
    std::string bytes;
    std::vector<Named> block;
    std::size_t used = 0;
    const std::size_t begin = image_.behind[node.path];
    for (const auto& [name, named] : all) {
      if (used + 12 + name.size() > options_.directory_fill) {
        append_block(bytes, block, begin, node.path);
        bytes.resize(round_up(bytes.size(), kErofsBlock));
        block.clear();
        used = 0;
      }
      block.push_back(named);
      used += 12 + name.size();
    }
    append_block(bytes, block, begin, node.path);
    return bytes;
  }

  void append_block(std::string& bytes, const std::vector<Named>& block, std::size_t begin,
                    const std::string& path) {
    std::size_t name_at = 12 * block.size();
    std::string names;
    for (const Named& named : block) {
      const std::string whole = path.empty() ? named.name : path + "/" + named.name;
      image_.entries[whole] = begin + bytes.size();
      image_.names[whole] = begin + bytes.size() - bytes.size() % kErofsBlock + name_at;
      append(bytes, named.nid);
      append(bytes, static_cast<std::uint16_t>(name_at));
      append(bytes, std::uint16_t{named.type});
      name_at += named.name.size();
      names += named.name;
    }
    bytes += names;
  }

  void write(ErofsNode& node) {
    std::string record;
    std::string free;
    const auto attributes = attributes_of(node, &free);
    append(record, static_cast<std::uint16_t>(1U | static_cast<unsigned>(node.stored) << 1U));
    append(record,
           static_cast<std::uint16_t>(attributes.empty() ? 0 : (attributes.size() - 12) / 4 + 1));
    append(record, std::uint32_t{node.mode});
    append(record, node.size);
    append(record, static_cast<std::uint32_t>(node.block));
    record.resize(32);
    append(record, std::uint64_t{1'700'000'000});
    record.resize(44);
    append(record, node.links);
    record.resize(64);
    record += attributes + node.behind;
    const std::size_t place = image_.inodes[node.path];
    if (node.type == 2) node.content = entries_of(node);
    if (is_text(node)) {
      image_.bytes.replace(image_.behind[node.path], node.size, node.content);
    } else if (node.stored == Stored::inlined) {
      record += node.content;
    }
    image_.bytes.replace(place, record.size(), record);
    mark_open(node, place, free);
  }

  void mark_open(const ErofsNode& node, std::size_t place, const std::string& free) {
    const auto open = [&](std::size_t begin, std::size_t size) {
      image_.open.emplace_back(begin, begin + size);
    };
    open(place + 4, 2);   // permissions
    open(place + 8, 8);   // size
    open(place + 32, 4);  // date
    for (std::size_t i = 0; i < free.size(); ++i) {
      if (free[i] != '\0') open(place + 64 + i, 1);
    }
    if (node.type == 7 || (node.type == 1 && node.stored == Stored::inlined))
      open(image_.behind[node.path], node.size);
    for (const auto& [name, child] : node.entries) {
      const std::string whole = node.path.empty() ? name : node.path + "/" + name;
      open(image_.names[whole], name.size());
      open(image_.entries[whole] + 8, 2);  // end of the preceding extent
    }
  }

  void write_super() {
    std::string super;
    for (const std::uint32_t number : {0xE0F5E1E2U, 0U, 3U}) append(super, number);
    append(super, std::uint16_t{12});
    append(super, std::uint16_t{40});
    append(super, std::uint64_t{nodes_.size()});
    super.resize(36);
    append(super, next_block());
    super.resize(80);
    append(super, std::uint32_t{options_.is_compressed ? 7U : 4U});
    append(super, std::uint16_t{options_.is_compressed});
    super.resize(128);
    if (options_.is_compressed) {
      for (const unsigned number : {14U, 65535U, 32U})
        append(super, static_cast<std::uint16_t>(number));
    }
    image_.bytes.replace(1024, super.size(), super);
    image_.tables.emplace_back(0, kRootPlace);
  }

  ErofsTree::Options options_;
  ErofsImage image_;
  std::vector<ErofsNode*> nodes_;
  std::map<const ErofsNode*, ErofsNode*> parents_;
};

}  // namespace

ErofsImage& ErofsImage::seal() {
  put(bytes, 1028, std::uint32_t{0});
  std::uint32_t sum = 0xffffffff;
  for (std::size_t at = 1024; at < kErofsBlock && at < bytes.size(); ++at) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      const bool carry = ((sum ^ static_cast<unsigned char>(bytes[at]) >> bit) & 1U) != 0;
      sum = carry ? sum >> 1U ^ 0x82F63B78U : sum >> 1U;
    }
  }
  put(bytes, 1028, sum);
  return *this;
}

bool ErofsImage::is_open(std::size_t at) const {
  return std::any_of(open.begin(), open.end(),
                     [&](const Range& range) { return at >= range.first && at < range.second; });
}

ErofsTree::ErofsTree()
    : root_(std::make_shared<ErofsNode>(ErofsNode{.mode = S_IFDIR | 0755, .type = 2})) {}

ErofsTree::Node ErofsTree::find(const std::string& path) {
  Node node = root_;
  for (std::size_t at = 0; at < path.size();) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    node = node->entries.at(path.substr(at, end - at));
    at = end + 1;
  }
  return node;
}

ErofsNode& ErofsTree::at(const std::string& path) { return *find(path); }

ErofsNode& ErofsTree::add(const std::string& path, ErofsNode node) {
  const std::size_t slash = path.rfind('/');
  const Node parent = slash == std::string::npos ? root_ : find(path.substr(0, slash));
  return *(parent->entries[path.substr(slash + 1)] = std::make_shared<ErofsNode>(std::move(node)));
}

ErofsNode& ErofsTree::directory(const std::string& path, std::uint16_t permissions) {
  return add(path, {.mode = static_cast<std::uint16_t>(S_IFDIR | permissions), .type = 2});
}
ErofsNode& ErofsTree::file(const std::string& path, std::string content, Stored stored,
                           std::uint16_t permissions) {
  return add(path, {.mode = static_cast<std::uint16_t>(S_IFREG | permissions),
                    .type = 1,
                    .stored = stored,
                    .content = std::move(content)});
}
ErofsNode& ErofsTree::symlink(const std::string& path, std::string target) {
  return add(path, {.mode = S_IFLNK | 0777, .type = 7, .content = std::move(target)});
}
ErofsNode& ErofsTree::whiteout(const std::string& path) {
  return add(path, {.mode = S_IFCHR, .type = 3, .stored = Stored::plain});
}
ErofsNode& ErofsTree::fifo(const std::string& path) {
  return add(path, {.mode = S_IFIFO | 0600, .type = 5, .stored = Stored::plain});
}
void ErofsTree::hard_link(const std::string& path, const std::string& existing) {
  const Node node = find(existing);
  const std::size_t slash = path.rfind('/');
  const Node parent = slash == std::string::npos ? root_ : find(path.substr(0, slash));
  parent->entries[path.substr(slash + 1)] = node;
}

ErofsImage ErofsTree::image(Options options) { return Maker(options).make(*root_); }

ErofsTree erofs_sample(bool large) {
  ErofsTree tree;
  tree.directory("d", 01755);
  tree.file("d/a", "first");
  tree.file("!first", "sorts in front of a dot");
  tree.file("empty", "", Stored::plain);
  tree.file("plain", noise(5000), Stored::plain);
  tree.file("holes", std::string(kErofsUnit, '\0') + std::string(5000, 'y'), Stored::chunks);
  tree.file("packed", std::string(10'000, 'x'), Stored::compressed);
  tree.hard_link("d/h", "plain");
  tree.directory("void");
  tree.symlink("link", "d/a");
  tree.fifo("fifo");
  tree.whiteout("gone");
  tree.directory("hide")
      .with("overlay.opaque", "y", 4)
      .with("overlay.opaque", "y")
      .with("note", "of a directory");
  tree.file("hide/f", "x");
  tree.file("note", "with attributes").with("note", "value").with("other", "");
  if (!large) return tree;
  tree.file("d/one", std::string(4096 + 904, 'q'), Stored::compressed);
  tree.file("d/exact", std::string(kErofsUnit, 'e') + std::string(8192, 'f'), Stored::compressed)
      .with("a", "b");
  tree.file("d/mixed", std::string(kErofsUnit, 'm') + noise(kErofsUnit) + std::string(50'000, 'n'),
            Stored::compressed);
  tree.file("d/tail", std::string(kErofsUnit, 'm') + noise(4097), Stored::compressed)
      .with("odd", "123456");
  tree.file("d/index", std::string(std::size_t{17} * kErofsUnit + 1, 'i'),
            Stored::compressed);  // longer than a block
  tree.file(
      "d/holes",
      std::string(std::size_t{3} * kErofsUnit, '\0').replace(kErofsUnit, 10, "some words") + "end",
      Stored::chunks);
  tree.file("d/nothing", std::string(kErofsUnit + 1, '\0'), Stored::chunks);
  tree.file("d/full", std::string(4096 - 64, 'f'));
  tree.symlink("long", std::string(4095, 't'));
  tree.symlink("short", std::string(4096 - 64, 's'));
  tree.file("large", "large attributes", Stored::plain)
      .with("large", std::string(65535, 'v'))
      .with(std::string(250, 'n'), "");
  tree.directory("many").with("note", std::string(100, 'x'));
  for (unsigned i = 0; i < 300; ++i) {
    const std::string name = "many/" + std::string(i % 60, 'n') + std::to_string(1000 + i);
    if (i % 30 == 0) {
      tree.directory(name);
    } else if (i % 7 == 0) {
      tree.file(name, name);
    } else {
      tree.hard_link(name, "empty");
    }
  }
  return tree;
}

}  // namespace spc::test
