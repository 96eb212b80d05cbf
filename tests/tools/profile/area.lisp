;;;; What frames and stacks belong to.

(in-package #:clgrpc.tests.profile)

(test areas-of-lisp-functions
  (loop for (name area)
          in '(("clgrpc.http2::receive-headers" "http2")
               ("clgrpc.base::append-quoted" nil)
               ("(setf clgrpc.base::buffer-end)" nil)
               ("gethash" nil)
               ("(flet sb-thread::with-mutex-thunk :in clgrpc.loop::run-turn)" "loop")
               ("(lambda (clgrpc.protobuf:message) :in clgrpc.protobuf::reader-function)"
                "protobuf")
               ("\"write routeguide.Feature\"" "protobuf")
               ("\"read routeguide.Point\"" "protobuf")
               ("(sb-pcl::fast-method routeguide.route-guide:get-feature (t t t))" "user code")
               ("clgrpc.tools::find-feature" "user code")
               ("my-app::handle" "user code")
               ("sb-vm::alloc-tramp" "allocation")
               ("sb-kernel::sub-gc" "collector")
               ("clgrpc.tests.world::run" "tests"))
        do (is (equal area (profile::lisp-area name)) "~A is ~S's" name (profile::lisp-area name))))

(test areas-of-the-kernel
  (loop for (name area)
          in '(("tcp_sendmsg_locked" "kernel: tcp") ("__schedule" "kernel: scheduling")
               ("ep_poll_callback" "kernel: epoll") ("_copy_from_iter" "kernel: copy")
               ("do_futex" "kernel: futex") ("handle_mm_fault" "kernel: memory")
               ("do_syscall_64" "kernel: other") ("_raw_spin_unlock_irqrestore" nil))
        do (is (equal area (profile::kernel-area name)) "~A" name)))

(test areas-of-libraries
  (flet ((area (name image) (profile::native-area name image)))
    (is (equal "tls" (area "SSL_read" "/usr/lib/x86_64-linux-gnu/libssl.so.3")))
    (is (equal "compression" (area "inflate" "/lib/libz.so.1")))
    (is (null (area "__memmove_avx_unaligned" "/lib/libc.so.6")))
    (is (equal "collector" (area "collect_garbage" "/usr/bin/clgrpc")))
    (is (equal "allocation" (area "alloc" "/usr/bin/clgrpc")))))

(defun lisp (&rest names) (mapcar #'profile::make-lisp-frame names))
(defun kernel (&rest names) (mapcar #'profile::make-kernel-frame names))
(defun native (name image) (list (profile::make-native-frame name image)))

(test a-stack-belongs-to-the-first-that-is-anybody
  (flet ((is-of (area &rest frames)
           (is (string= area (profile::stack-area (reduce #'append frames))))))
    (is-of "http2" (native "memmove" "/lib/libc.so.6")
           (lisp "sb-kernel:ub8-bash-copy" "clgrpc.http2::end-data" "clgrpc.server::write-end"))
    (is-of "kernel: tcp" (kernel "_raw_spin_unlock_irqrestore" "tcp_ack" "__x64_sys_sendto"))
    (is-of "kernel: scheduling"
           (kernel "finish_task_switch.isra.0" "__schedule" "schedule" "ep_poll"))
    ;; all that the collector does is its
    (is-of "collector" (kernel "clear_page_erms" "handle_mm_fault")
           (native "collect_garbage" "/bin/clgrpc") (lisp "sb-kernel::sub-gc"))
    (is-of "lisp" (lisp "gethash"))
    (is-of "kernel: other" (kernel "read_tsc"))
    (is-of "unknown" (list profile::**unknown-frame**) (lisp "clgrpc.loop::run-turn"))
    (is-of "unknown")))

(test phases
  (flet ((is-in (phase &rest frames)
           (is (string= phase (profile::stack-phase (reduce #'append frames))))))
    (is-in "creation" (lisp "clgrpc.hpack:decode-block" "clgrpc.http2::receive-headers"
                            "clgrpc.loop::read-connection" "clgrpc.loop::run-turn"))
    (is-in "handler" (lisp "my-app::handle" "(lambda () :in clgrpc.server::run-handler)"
                           "clgrpc.server::run-inline" "clgrpc.loop::run-turn"))
    ;; what a handler sends itself is completion
    (is-in "completion" (lisp "clgrpc.http2::end-data" "clgrpc.server::server-reply"
                              "my-app::handle" "clgrpc.server::run-handler"))
    (is-in "send" (kernel "tcp_sendmsg" "__sys_sendto") (native "__send" "/lib/libc.so.6"))
    (is-in "loop" (lisp "clgrpc.loop::end-turn" "clgrpc.loop::run-turn"))
    (is-in "collection" (native "collect_garbage" "/bin/clgrpc"))
    (is-in "other" (lisp "my-app::thread"))))

(test functions-of-phases-exist
  "A function that was renamed leaves its phase."
  (loop for (nil . names) in profile::*phases*
        do (dolist (name names)
             (let* ((colon (position #\: name))
                    (package (find-package (string-upcase (subseq name 0 colon))))
                    (symbol (and package
                                 (find-symbol (string-upcase (string-left-trim
                                                              ":" (subseq name colon)))
                                              package))))
               (is (and symbol (fboundp symbol)) "There is no function ~A" name)))))
