#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "base/listener.hpp"
#include "config/config.hpp"
#include "share/tracker.hpp"
#include "spank_container/runtime.h"

// --- terminate ---

// Called for an uncaught exception; guard() in runtime.cpp catches all. libstdc++'s handler prints
// the exception's type, for which it links a demangler of 50 KB.

namespace __gnu_cxx {

void __verbose_terminate_handler();
void __verbose_terminate_handler() { std::abort(); }

}  // namespace __gnu_cxx

// --- tracker ---

struct spc_tracker {
  spc::Tracker tracker;
  std::string variable;
};

static_assert(std::string_view(SPC_TRACKER_VARIABLE) == spc::kTrackerVariable);

namespace {

spc::PeersConfig peers_of_site() {
  const auto config = spc::read_valid_config(SPC_CONFIG_FILE);
  return config ? config->peers : spc::PeersConfig();
}

spc::PortRange ports_of_srun(const spc::PeersConfig& peers) {
  return spc::PortRange::parse(peers.srun_ports).value_or(spc::PortRange());
}

}  // namespace

int spc_srun_listen(uint16_t* port) {
  if (port == nullptr) return -1;
  try {
    auto made = spc::Listener::open(ports_of_srun(peers_of_site()));
    if (!made) return -1;
    *port = made->port;
    return made->socket.release();
  } catch (const std::exception&) {  // out of memory
    return -1;
  }
}

int spc_tracker_open(spc_tracker** tracker, const char** variable) {
  if (tracker == nullptr || variable == nullptr) return SPC_E_INVALID;
  *tracker = nullptr;
  try {
    auto made = std::make_unique<spc_tracker>();
    const auto peers = peers_of_site();
    const auto address = made->tracker.open(ports_of_srun(peers), peers.fanout);
    if (!address) return SPC_E_SYSTEM;
    made->variable = address->variable();
    *variable = made->variable.c_str();
    *tracker = made.release();
    return SPC_OK;
  } catch (const std::exception&) {  // out of memory
    return SPC_E_NO_SPACE;
  }
}

void spc_tracker_start(spc_tracker* tracker, uint32_t nodes, const char* image, spc_log_fn log,
                       void* arg) {
  if (tracker == nullptr) return;
  try {
    tracker->tracker.start(
        nodes, image != nullptr ? image : "",
        [log, arg](spc::Tracker::About about, const std::string& line) {
          if (log != nullptr)
            log(about == spc::Tracker::About::progress ? SPC_LOG_INFO : SPC_LOG_DEBUG, line.c_str(),
                arg);
        });
  } catch (const std::exception&) {
    // Out of memory: no node is answered, and each pulls by itself.
  }
}

void spc_tracker_free(spc_tracker* tracker) { delete tracker; }
