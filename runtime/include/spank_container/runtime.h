/* libspank_container.so.1: containers for the tasks of a Slurm step.
 *
 * Order of calls in slurmstepd, with the SPANK callback of each:
 *
 *   init (slurmd)           spc_node_setup
 *   init_post_opt           spc_open, spc_step_open
 *   user_init               spc_step_start
 *   task_init_privileged    spc_task_keep_privilege
 *   task_init               spc_task_begin, spc_task_enter, spc_task_flags
 *   task_exit               spc_step_finish
 *   exit                    spc_close
 *
 * In srun, sbatch and salloc: spc_option_at for each option; spc_open, spc_summarize, spc_check,
 * spc_close; in srun spc_tags_ask before the step is made, and spc_tags_known before it starts,
 * spc_tracker_open and spc_tracker_start likewise. Call spc_configure before spc_check and
 * spc_task_enter.
 *
 * Functions return SPC_OK or a negative code; spc_error_message() returns the text of a handle's
 * last failure. The library throws no exception and installs no signal handler. Its descriptors are
 * closed on exec. Strings are borrowed for the duration of the call. Only one thread may use a
 * handle at a time. */
#ifndef SPANK_CONTAINER_RUNTIME_H
#define SPANK_CONTAINER_RUNTIME_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/** A variable of the job: its submission time in seconds since 1970. A tag that was resolved after
 * that time is not resolved again for job_tag_ttl seconds (config.toml). */
#define SPC_SINCE_VARIABLE "SLURM_SPANK_SCONTAINER_SINCE"

/** A variable of the step: the address at which srun listens for its nodes (spc_tracker_open). The
 * caller removes it before the task's program starts. */
#define SPC_TRACKER_VARIABLE "SLURM_SCONTAINER_TRACKER"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SPC_API __attribute__((visibility("default")))
#else
#define SPC_API
#endif

enum {
  SPC_OK = 0,
  SPC_E_INVALID = -1,     /* invalid request or call */
  SPC_E_NOT_FOUND = -2,   /* image, path or directory does not exist */
  SPC_E_REFUSED = -3,     /* no permission, or the site's policy */
  SPC_E_UNAVAILABLE = -4, /* a service does not respond; retry later */
  SPC_E_NO_SPACE = -5,    /* disk, memory, quota or a table is full */
  SPC_E_CORRUPT = -6,     /* data does not match its digest */
  SPC_E_SYSTEM = -7,      /* a system call failed */
  SPC_E_INTERNAL = -8     /* a bug in this library */
};

/* Levels of a line. A notice is the same on every node of the step: print it in one task only. A
 * record is for the administrator: one line of key=value per start on a node. */
enum {
  SPC_LOG_DEBUG = 0,
  SPC_LOG_INFO = 1,
  SPC_LOG_WARNING = 2,
  SPC_LOG_NOTICE = 3,
  SPC_LOG_RECORD = 4
};

/* Receives one line without newline. Any function below may call it. */
typedef void (*spc_log_fn)(int level, const char* line, void* arg);

typedef struct spc_runtime spc_runtime;

/* One option of a container, for the caller to register. Members are only ever added at the end. */
struct spc_option {
  size_t size;          /* sizeof as the caller compiled it */
  const char* name;     /* without dashes, for example "container-image" */
  const char* argument; /* shown in --help; NULL: the option takes none */
  const char* help;
  const char* opposite; /* name of the opposite switch, or NULL */
  int is_list;          /* 1: may be repeated, or have one value with commas */
  int has_argument;     /* 0: none; 1: required; 2: can be left out, as for SPANK's has_arg */
};

/* The user's request. Members are only ever added at the end. */
struct spc_options {
  size_t size; /* sizeof as the caller compiled it */
  /* NULL-terminated; each NAME=VALUE, or NAME of an option without a value */
  const char* const* given;
  /* the user's environment, NAME=VALUE, NULL-terminated; or NULL. SCONTAINER_NAME and
   * PYXIS_CONTAINER_NAME set the options NAME that are not given. */
  const char* const* variables;
  const char* batch_script;   /* path of the script in a batch step, or NULL */
  const char* const* command; /* the task's command, for --container-explain; or NULL */
  int only_pull; /* 1: spc_task_enter pulls the image into the store and exits with status 0 */
  const char* resolved; /* the result of spc_tags_known in srun, or NULL */
  const char* tracker;  /* the value that spc_tracker_open returned in srun, or NULL */
  /* 1: the call submits a job: in sbatch and salloc, and in an srun that is not in a job */
  int begins_job;
  const char* partitions; /* for spc_check_site: the value of srun --partition, or NULL */
  const char* constraint; /* the value of --constraint, or NULL */
};

/* Summary of the options, before their values are checked. */
struct spc_summary {
  size_t size;
  int container; /* 1: a container is requested, by image or name */
  int explain; /* 1: dry run: spc_task_enter logs what would be executed, and exits with status 0 */
  int verbose; /* 1: print a timing breakdown */
  /* the image's name as typed, without secrets of a URL; "" if there is none or it is longer */
  char image[256];
};

struct spc_step {
  size_t size;
  uid_t uid; /* the job's user */
  gid_t gid;
  uint32_t job_id; /* Slurm's numbers of the step */
  uint32_t step_id;
};

/* Results of spc_environment.read besides SPC_OK. */
enum {
  SPC_READ_OUTSIDE = 1, /* this task has no container and stays on the host */
  SPC_READ_LEAVE = 2 /* another task of the step does this task's work: exit with status 0 */
};

/* Settings of config.toml for tasks, returned by spc_task_flags. */
enum { SPC_FLAG_ERROR_REPORT = 1, SPC_FLAG_TASK_PROLOG_ON_HOST = 2 };

/* Access of spc_task_enter to the job's environment. */
struct spc_environment {
  size_t size;
  const char* const* variables; /* NAME=VALUE, NULL-terminated */
  void (*set)(const char* name, const char* value, void* arg);
  void (*unset)(const char* name, void* arg);
  void* arg;
  /* Or NULL. Called on the host when everything is ready, in the task with its privilege: it must
   * not read data that users have written. */
  void (*before_entering)(void* arg);
  /* Or NULL. Fills in options and variables. If it is set, `options` of spc_task_enter is NULL, and
   * the library does not read `variables` before this call. It is called where users' texts may be
   * read: in processes that have no capability (except CAP_SYS_CHROOT, not in effect), and in the
   * task once it has none. Returns SPC_OK, SPC_READ_*, or a negative code, whose reason the library
   * does not learn. Both results are borrowed until spc_task_enter returns. */
  int (*read)(const struct spc_options** options, const char* const** variables, void* arg);
  /* Or NULL; called before `read` in a process that one of the node's tasks has started to set the
   * container up. `first` is 1 in the first of these processes, which logs for the whole node.
   * Where each task has its own container, later calls have 0. */
  void (*before_leading)(int first, void* arg);
  /* Or NULL. Called in a process of the user's when the node's tasks have ended and the container
   * could not be saved: makes srun fail. */
  void (*fail_step)(void* arg);
};

/* Creates a handle; free it with spc_close(). `log` may be NULL. */
SPC_API int spc_open(spc_log_fn log, void* arg, spc_runtime** out);
/* Frees the handle and kills the step's agent without waiting for it. NULL is allowed. */
SPC_API void spc_close(spc_runtime* rt);
/* Returns the reason of the last failure on this handle: one line, valid until the next call. */
SPC_API const char* spc_error_message(const spc_runtime* rt);

/* Applies settings of plugstack.conf to later calls on this handle: KEY=VALUE with keys of
 * config.toml, NULL-terminated. */
SPC_API int spc_configure(spc_runtime* rt, const char* const* settings);
/* Returns the prefix of every line for the user, "spank-container: " or "pyxis: ", as configured by
 * the site. Static. */
SPC_API const char* spc_message_prefix(const spc_runtime* rt);

/* Returns option `number`, from 0, in `out`; SPC_E_NOT_FOUND after the last. Needs no handle. The
 * texts are static. */
SPC_API int spc_option_at(size_t number, struct spc_option* out);
/* Refuses unknown and contradicting options, and summarizes the others. Does not check values. At
 * submission, which knows no command, warns of variables that are nearly those of an option. */
SPC_API int spc_summarize(spc_runtime* rt, const struct spc_options* options,
                          struct spc_summary* out);
/* Checks the syntax of the options, without side effects. */
SPC_API int spc_check(spc_runtime* rt, const struct spc_options* options);
/* In srun, sbatch and salloc, as the user, for options that spc_check accepts: refuses a request
 * that this machine's configuration does not allow and, with `check_at_submit`, an image that its
 * registry does not have or that does not fit the nodes. Doubtful requests cause a warning in the
 * log. With `pull_at_submit`, then starts the site's program for the image of a new job. */
SPC_API int spc_check_site(spc_runtime* rt, const struct spc_options* options);
/* Returns the image's digest, if spc_check_site has queried it, otherwise "". Valid until the next
 * call on this handle. */
SPC_API const char* spc_image_digest(const spc_runtime* rt);

/* The digests of the tags of a step's images. */
typedef struct spc_tags spc_tags;
/* In srun, as the user, for options that spc_check accepts: starts to query the registry in the
 * background. `tags` points to NULL before the first component of a step; free it with
 * spc_tags_free. */
SPC_API int spc_tags_ask(spc_runtime* rt, const struct spc_options* options, spc_tags** tags);
/* Waits for the answers, at most `milliseconds`, and ends the query. Returns the known digests, for
 * `resolved` of the step's tasks. "" if none is known: then the nodes query the registry. Valid as
 * long as `tags`, which may be NULL. */
SPC_API const char* spc_tags_known(spc_tags* tags, unsigned milliseconds);
SPC_API void spc_tags_free(spc_tags* tags);

/* In srun, as the user: returns a socket that listens at a free port of `srun_ports` (config.toml),
 * or at any free port, for connections from the step's nodes. It is non-blocking and close-on-exec,
 * and the caller owns it. -1 on failure. */
SPC_API int spc_srun_listen(uint16_t* port);

/* The service in srun through which the nodes of a step that lack an image find each other: one
 * pulls it from the registry, the others from nodes. */
typedef struct spc_tracker spc_tracker;
/* In srun, as the user, before the step is created: listens like spc_srun_listen. Sets `variable`
 * to the value for SPC_TRACKER_VARIABLE of the step's tasks, which pass it as `tracker` in their
 * options. It is valid as long as `tracker`, which the caller frees with spc_tracker_free. */
SPC_API int spc_tracker_open(spc_tracker** tracker, const char** variable);
/* When the step is about to start on `nodes` nodes (0: unknown): answers them in a separate thread,
 * with all signals blocked, until spc_tracker_free. That thread reports progress to `log`, which
 * may be NULL; spc_tracker_free reports the final result as SPC_LOG_DEBUG. `image`: the image's
 * name in these lines, or NULL. */
SPC_API void spc_tracker_start(spc_tracker* tracker, uint32_t nodes, const char* image,
                               spc_log_fn log, void* arg);
/* Frees the handle and never waits for a node. NULL is allowed. */
SPC_API void spc_tracker_free(spc_tracker* tracker);

/* As root, when slurmd starts: creates the node's directories. */
SPC_API int spc_node_setup(spc_runtime* rt);

/* As root, when a job has ended: removes its named containers. */
SPC_API int spc_job_epilog(spc_runtime* rt, uid_t uid, uint32_t job_id);

/* In the process that forks the tasks: creates the channel that they inherit. */
SPC_API int spc_step_open(spc_runtime* rt);
/* Starts the step's agent; root must be the saved user id. */
SPC_API int spc_step_start(spc_runtime* rt, const struct spc_step* step);

/* As root in the task's process: keeps the privilege that spc_task_enter needs, unused. */
SPC_API int spc_task_keep_privilege(spc_runtime* rt);
/* As the user in the task's process, before any other work: reduces the privilege that
 * spc_task_keep_privilege kept to the capabilities for entering. If it fails, spc_task_enter
 * reports the reason. */
SPC_API void spc_task_begin(void);
/* In the task, from before_entering on: returns settings of the node's config.toml, as received
 * from the step's agent: SPC_FLAG_*, or -1 if none were received. Reads no file. */
SPC_API int spc_task_flags(const spc_runtime* rt);
/* As the user in the task's process, shortly before exec: enters the container, which a child
 * process of the first task sets up. A batch script that does not run in the container stays on the
 * host. May take as long as the image pull. Afterwards, even after a failure, the process has no
 * privilege. */
SPC_API int spc_task_enter(spc_runtime* rt, const struct spc_options* options,
                           const struct spc_environment* environment);

/* Alternative for a task without a container: it stays on the host and drops what
 * spc_task_keep_privilege kept. NULL is allowed. */
SPC_API int spc_task_stay_outside(spc_runtime* rt);

/* As root in slurmstepd, when the last of this node's `tasks` has ended, `killed` of them by
 * SIGTERM or SIGKILL, `failed` with a status that is not 0: waits for the user's remaining work
 * (saving the container, stop hooks, the report of the step's end) in processes of the step, then
 * ends the agent. Reports progress to the log. */
SPC_API int spc_step_finish(spc_runtime* rt, uint32_t tasks, uint32_t killed, uint32_t failed);

/* On the host, as any user: returns a boolean setting of the node's config.toml, `otherwise` if it
 * is not set. */
SPC_API int spc_site_flag(const char* key, int otherwise);

/* Returns the path of the program that starts a script in a container in place of Slurm's own
 * program, with the same arguments, independent of the image's content. "" if out of memory.
 * Static. */
SPC_API const char* spc_launcher_path(void);

/* Returns the version of the package, for example "1.1.0". Static. */
SPC_API const char* spc_version(void);

#ifdef __cplusplus
}
#endif
#endif
