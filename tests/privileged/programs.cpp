#include "programs.hpp"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/file.hpp"
#include "base/process/child.hpp"
#include "base/process/own_program.hpp"
#include "base/socket.hpp"
#include "pinned_pages.hpp"
#include "protocol/import.hpp"
#include "protocol/layer.hpp"

namespace fs = std::filesystem;

namespace spc {
namespace {

/// A layer written by the played layer-writer, with the socket to its publisher.
struct NewLayer {
  UniqueFd socket, file;
};

bool receive(int socket, ImportMessage& message, std::vector<UniqueFd>& descriptors,
             std::size_t most) {
  auto received = receive_struct(socket, message, most);
  if (received) descriptors = *std::move(received);
  return received.has_value();
}

std::optional<NewLayer> new_layer(const std::string& content) {
  ImportMessage message{.kind = ImportMessageKind::object, .digest = {}};
  message.text.set("copy");
  std::vector<UniqueFd> descriptors;
  NewLayer layer;
  if (!send_struct(kImportSocket, message) || !receive(kImportSocket, message, descriptors, 1))
    return {};
  layer.socket = std::move(descriptors.at(0));
  if (!receive(layer.socket.get(), message, descriptors, 3) || descriptors.size() != 3) return {};
  if (!write_all(descriptors[0].get(), content)) return {};
  descriptors[0].reset();
  (void)read_pipe(descriptors[1].get(), 1000);
  message = {.kind = ImportMessageKind::written, .digest = {}};
  if (!send_struct(layer.socket.get(), message) ||
      !receive(layer.socket.get(), message, descriptors, 1))
    return {};
  layer.file = std::move(descriptors.at(0));
  return layer;
}

void publish(char content, const NewLayer& layer) {
  ImportMessage message{.kind = ImportMessageKind::publish, .digest = {}};
  message.digest.bytes.fill(static_cast<unsigned char>(content));
  (void)send_struct(layer.socket.get(), message);
}

std::string in_words(const ImportMessage& answer) {
  return std::to_string(answer.digest.bytes[0]) + ":" +
         std::to_string(static_cast<unsigned>(answer.kind)) +
         (answer.error.is_set() ? " " + answer.error.error().message() : "");
}

int end_with(const std::string& text) {
  ImportMessage end{.kind = ImportMessageKind::failed, .digest = {}};
  end.error = WireError(Error(ErrorKind::no_space, text, EDQUOT, "of import"));
  (void)send_struct(kImportSocket, end);
  ::pause();
  return 0;
}

/// Publishes a record of one byte and returns the answer.
std::string publish_record(char content) {
  ImportMessage message{.kind = ImportMessageKind::object, .digest = {}};
  std::vector<UniqueFd> descriptors;
  if (!send_struct(kImportSocket, message) || !receive(kImportSocket, message, descriptors, 1))
    return "no publisher";
  message = {.kind = ImportMessageKind::record, .digest = {}, .total = 1};
  message.digest.bytes.fill(static_cast<unsigned char>(content));
  ImportBytes piece{};
  piece.bytes[0] = content;
  const int publisher = descriptors.at(0).get();
  const bool asked = send_struct(publisher, message) && send_struct(publisher, piece);
  return asked && receive_struct(publisher, message) ? in_words(message) : "no answer";
}

int play_import() {
  std::string wishes(1000, '\0');
  wishes.resize(static_cast<std::size_t>(::recv(kImportSource, wishes.data(), wishes.size(), 0)));
  if (wishes == kPinPages || wishes == kHang)
    return end_with(wishes == kHang ? hang_in_read() : pin_pages());
  std::vector<std::string> answers;
  std::vector<NewLayer> layers;
  for (const char wish : wishes) {
    if (wish == 'G' || wish == 'B') {
      answers.push_back(publish_record(wish));
      continue;
    }
    if (wish != 'E') {
      auto layer = new_layer(std::string(1, wish));
      if (!layer) return 1;
      layers.push_back(*std::move(layer));
      continue;
    }
    ImportMessage message{.kind = ImportMessageKind::evict, .digest = {}};
    message.digest.bytes.fill(1);
    if (!send_struct(kImportSocket, message) || !receive_struct(kImportSocket, message)) return 1;
    answers.push_back(in_words(message));
  }
  for (std::size_t i = 0; i < layers.size(); ++i) publish(wishes[i], layers[i]);
  for (const NewLayer& layer : layers) {
    ImportMessage answer;
    if (!receive_struct(layer.socket.get(), answer)) return 1;
    answers.push_back(in_words(answer));
  }
  std::sort(answers.begin(), answers.end());
  std::string text;
  for (const std::string& answer : answers) text += answer + "|";
  return end_with(text);
}

int play_writer() {
  const bool copied = write_all(kLayerOutput, read_pipe(kLayerInput, 1 << 20)).has_value();
  return copied && write_all(kLayerReport, "report") ? 0 : 1;
}

int play_verifier(std::string_view manifest) {
  char content = 0;
  if (::pread(3, &content, 1, 0) != 1) return 2;
  Digest name;
  name.bytes.fill(static_cast<unsigned char>(content));
  const bool is_record = content == 'G' || content == 'B';
  if (manifest != (is_record ? name.str() : "")) return 2;
  // Each waits until the other has opened the FIFO, which never happens if they run in sequence.
  ::alarm(10);
  const std::string both = own_program("both-verifiers");
  if (content == 'b') ::close(::open(both.c_str(), O_RDONLY));
  if (content == 'c') ::close(::open(both.c_str(), O_WRONLY));
  if (content == 'c') ::abort();
  return content == 'g' || content == 'G' ? 0 : 1;
}

}  // namespace

void install_programs() {
  const fs::path directory = kPlaceOfPrograms;
  if (::mount("programs", directory.parent_path().c_str(), "tmpfs", 0, "mode=755") != 0) {
    std::perror("privileged_test: mount over the place of the programs");
    ::_exit(1);
  }
  fs::create_directories(directory);
  const fs::path both = directory / "both-verifiers";
  ::mkfifo(both.c_str(), 0600);
  ::chmod(both.c_str(), 0666);  // independent of the umask
  const fs::path itself = fs::read_symlink("/proc/self/exe");
  const std::pair<const char*, fs::path> programs[] = {
      {"fuse", SPC_FUSE_PROGRAM}, {"import", itself}, {"layer-writer", itself},
      {"layer-verifier", itself}, {"agent", itself},  {"sleep", "/bin/sleep"}};
  for (const auto& [name, program] : programs) {
    // Use mounts, not links: the users that execute them may not be able to enter the build
    // directory.
    std::ofstream(directory / name).close();
    if (::mount(program.c_str(), (directory / name).c_str(), nullptr, MS_BIND, nullptr) != 0) {
      std::perror(("privileged_test: mount " + program.string()).c_str());
      ::_exit(1);
    }
  }
}

std::optional<int> play(std::string_view program, std::string_view word) {
  char byte = 0;
  if (program == own_program("agent") && word == "step") return ::recv(3, &byte, 1, 0) == 0 ? 0 : 1;
  if (program == own_program("import") && word == "policy") return ::raise(SIGSTOP);
  if (program == own_program("import")) return play_import();
  if (program == own_program("layer-writer")) return play_writer();
  if (program == own_program("layer-verifier")) return play_verifier(word);
  return std::nullopt;
}

}  // namespace spc
