spc_unit_test(launch_test
  SOURCES launch_entrypoint_test.cpp launch_environment_test.cpp launch_failure_test.cpp launch_mounts_test.cpp launch_name_test.cpp
          launch_namespaces_test.cpp launch_slurm_client_test.cpp launch_task_notes_test.cpp
  LIBS spc_launch spc_hook_engine spc_hooks spc_task spc_reference spc_base)
spc_unit_test(save_test
  SOURCES launch_save_path_test.cpp
  LIBS spc_launch spc_hook_engine spc_hooks spc_task spc_export spc_store spc_registry spc_layer_process spc_reference spc_base)
spc_unit_test(local_image_test
  SOURCES image_sif_test.cpp launch_image_files_test.cpp launch_local_image_test.cpp
  LIBS spc_launch spc_hook_engine spc_hooks spc_task spc_reference spc_base)
spc_unit_test(furnish_test SOURCES container_furnish_test.cpp LIBS spc_task spc_base)
spc_unit_test(options_test SOURCES launch_options_test.cpp spank_words_test.cpp
  ${PROJECT_SOURCE_DIR}/spank/given.cpp ${PROJECT_SOURCE_DIR}/spank/oci_hint.cpp ${PROJECT_SOURCE_DIR}/spank/options.cpp
  ${PROJECT_SOURCE_DIR}/spank/settings.cpp
  LIBS spc_launch spank_container)
target_include_directories(options_test PRIVATE ${PROJECT_SOURCE_DIR})
spc_unit_test(api_test SOURCES api_test.cpp LIBS spank_container)
spc_unit_test(site_test
  SOURCES launch_enroot_text_test.cpp launch_rules_test.cpp
  LIBS spc_launch spc_hook_engine spc_hooks spc_task spc_reference spc_base)
spc_unit_test(enroot_mount_test SOURCES hook_enroot_fstab_test.cpp LIBS spc_enroot_fstab spc_base)
