;;;; The areas of a stack's frames: subsystems, which are folders of src/, user code, parts of the
;;;; kernel; and the phases of a call to which functions of the server and the client belong. Pure
;;;; functions of names. A sample counts for the innermost frame that belongs to an area. Some
;;;; functions belong to none, such as the C library's memmove and SBCL's GETHASH: their callers
;;;; count.

(in-package #:clgrpc.profile)

(defstruct (frame (:copier nil))
  "A function in a stack."
  (name "" :type string :read-only t)
  (kind :unknown :type (member :lisp :native :kernel :unknown) :read-only t)
  ;; the subsystem, or nil if the caller's subsystem counts
  (area nil :type (or null string) :read-only t)
  (phase nil :type (or null string) :read-only t)) ; the phase of a call, or nil

;;; The kernel: the beginnings of names of functions, by part. The first row that fits a frame, from
;;; the inside, counts.

(defparameter *kernel-areas*
  '(("kernel: copy" "copy_to_" "_copy_to_" "copy_from_" "_copy_from_" "copy_user" "rep_movs"
     "simple_copy_to_iter" "skb_copy_datagram" "__skb_datagram_iter" "csum_partial" "copy_page")
    ("kernel: scheduling" "schedule" "__schedule" "finish_task_switch" "try_to_wake_up" "ttwu_"
     "wake_up_" "default_wake_function" "autoremove_wake" "pick_next" "pick_task" "enqueue_task"
     "dequeue_task" "enqueue_entity" "dequeue_entity" "update_curr" "select_task" "select_idle"
     "sched_" "switch_" "__switch" "resched_" "reschedule" "task_tick" "hrtimer_" "__hrtimer"
     "sysvec_" "asm_sysvec" "native_send_call" "native_smp_send" "call_function_single"
     "perf_" "__perf" "ctx_sched" "psi_" "yield_" "do_nanosleep" "tick_")
    ("kernel: epoll" "ep_" "do_epoll" "__x64_sys_epoll" "__arm64_sys_epoll" "eventpoll"
     "eventfd" "__ep" "epoll_" "poll_" "do_sys_poll" "__pollwait")
    ("kernel: futex" "futex" "do_futex" "__futex" "__x64_sys_futex" "__arm64_sys_futex")
    ("kernel: tcp" "tcp_" "__tcp" "inet_" "inet6_" "ip_" "ip6_" "ipv6_" "__ip" "sock_" "__sock"
     "sk_" "__sk" "skb_" "alloc_skb" "kfree_skb" "consume_skb" "__kfree_skb" "__alloc_skb"
     "__build_skb" "napi_" "__napi" "net_rx" "process_backlog" "dev_" "__dev" "loopback"
     "netif_" "__netif" "neigh_" "nf_" "lock_sock" "release_sock" "__lock_sock"
     "__release_sock" "__sys_send" "__sys_recv" "__x64_sys_send" "__x64_sys_recv"
     "__arm64_sys_send" "__arm64_sys_recv" "unix_" "sys_sendto" "sys_recvfrom" "udp_"
     "__x64_sys_accept" "do_accept" "__sys_" "security_sock")
    ("kernel: memory" "asm_exc_page_fault" "exc_page_fault" "do_user_addr_fault"
     "handle_mm_fault" "__handle_mm_fault" "do_anonymous_page" "clear_page" "do_mem_abort"
     "do_madvise" "__x64_sys_madvise" "__x64_sys_mmap" "__x64_sys_munmap" "zap_" "unmap_"
     "do_mmap" "do_munmap" "__x64_sys_mprotect" "do_mprotect")
    ("kernel: signals" "do_signal" "get_signal" "__x64_sys_rt_sig" "setup_rt_frame"
     "handle_signal" "restore_sigcontext" "__x64_sys_tgkill" "arch_do_signal"))
  "For each part of the kernel, the prefixes of the names of its functions.")

(defparameter *kernel-otherwise* '("do_syscall" "entry_SYSCALL" "syscall_" "__x64_sys"
                                   "el0_svc" "invoke_syscall" "__arm64_sys" "ret_from")
  "The prefixes of names of functions through which the kernel is entered.")

(defun begins-with-p (name beginnings)
  (some (lambda (beginning) (uiop:string-prefix-p beginning name)) beginnings))

(defun kernel-area (name)
  "The part of the kernel to which its function NAME belongs, or nil if that depends on the
function's caller."
  (or (first (find name *kernel-areas* :key #'rest :test #'begins-with-p))
      (and (begins-with-p name *kernel-otherwise*) "kernel: other")))

;;; Native code in user space

(defparameter *collector-functions*
  '("collect_garbage" "garbage_collect" "gc_" "scav" "trans_" "preserve_" "sig_stop_for_gc"
    "maybe_gc" "remap_free_pages" "free_oldspace" "prepare_immobile_space" "sweep_"
    "unprotect_oldspace" "wipe_nonpinned" "update_immobile" "zero_all_free" "scan_")
  "The prefixes of names of the collector's functions in SBCL's runtime.")

(defparameter *allocator-functions*
  '("alloc" "lisp_alloc" "alloc_tramp" "zero_" "os_preinit" "gencgc_alloc" "allocate_")
  "The prefixes of names of the allocator's functions in SBCL's runtime.")

(defparameter *system-call-areas*
  (let ((table (make-hash-table :test 'equal)))
    (loop for (area . names) in '(("kernel: tcp" "__send" "send" "__libc_send" "recv" "__recv"
                                   "__libc_recv" "accept4" "connect" "__connect")
                                  ("kernel: epoll" "epoll_wait" "epoll_ctl")
                                  ("kernel: futex" "syscall"))
          do (dolist (name names) (setf (gethash name table) area)))
    table)
  "For functions of the C library, whose stacks do not show the kernel: the part of the kernel that
they call.")

(defun native-area (name image)
  "The area of the function NAME of IMAGE, the path of a program or library, or nil if that depends
on the function's caller."
  (let ((file (subseq image (1+ (or (position #\/ image :from-end t) -1)))))
    (flet ((library-p (prefix) (uiop:string-prefix-p prefix file)))
      (cond ((gethash name *system-call-areas*))
            ((or (library-p "libssl") (library-p "libcrypto")) "tls")
            ((or (library-p "libz") (library-p "libbrotli")) "compression")
            ((or (library-p "libc") (library-p "libm") (library-p "[vdso]") (library-p "ld-"))
             nil)
            ((begins-with-p name *collector-functions*) "collector")
            ((begins-with-p name *allocator-functions*) "allocation")
            (t nil)))))

;;; Lisp

(defun word-end (name start)
  "The end of the part of NAME from START that could be the name of a package."
  (or (position-if-not (lambda (char) (or (alphanumericp char) (find char ".-_/+%*"))) name
                       :start start)
      (length name)))

(defun name-packages (name)
  "The packages that NAME, a Lisp function's name as printed, mentions, in order."
  (loop with start = 0
        for colon = (position #\: name :start start)
        while colon
        for begin = (1+ (or (position-if (lambda (char) (find char " ()'#\"|")) name
                                         :end colon :from-end t)
                            -1))
        when (< begin colon)
          collect (subseq name begin colon)
        do (setf start (word-end name (or (position #\: name :start colon :test-not #'char=)
                                          (length name))))))

(defun neutral-package-p (package)
  "True if functions of PACKAGE work for their callers."
  (or (uiop:string-prefix-p "sb-" package)
      (string= package "clgrpc.base")
      (string= package "clgrpc.kernel")))

(defun lisp-area (name)
  "The subsystem to which the Lisp function NAME, printed in lower case, belongs, or nil if that
depends on the function's caller."
  (cond ((begins-with-p name '("\"read " "\"write " "\"size of " "\"check ")) "protobuf")
        ((search "alloc-tramp" name) "allocation")
        ((search "alloc_tramp" name) "allocation")
        ((begins-with-p name '("sb-kernel::sub-gc" "sb-kernel::collect-garbage"
                               "sb-kernel::post-gc" "(flet perform-gc" "sb-ext:gc"))
         "collector")
        (t (let ((package (find-if-not #'neutral-package-p (name-packages name))))
             (cond ((null package) nil)
                   ((begins-with-p package '("clgrpc.examples" "clgrpc.tools" "clgrpc.load"
                                             "clgrpc.profile"))
                    "user code")
                   ((uiop:string-prefix-p "clgrpc." package)
                    (let ((folder (subseq package (length "clgrpc."))))
                      (subseq folder 0 (position #\. folder))))
                   ((string= package "clgrpc") "calling")
                   (t "user code"))))))

;;; Phases

(defparameter *phases*
  '(("collection" "sb-kernel::sub-gc" "sb-kernel::post-gc")
    ("wait" "clgrpc.loop::wait-for-epoll" "clgrpc.loop::fetch-events"
     "clgrpc.loop::wait-for-poll" "clgrpc.loop::wait-and-dispatch" "clgrpc.loop::timer-phase"
     "clgrpc.loop::inbox-phase" "clgrpc.loop::watch-anew" "clgrpc.os:wait-for-events")
    ("destruction" "clgrpc.server::retire-call" "clgrpc.server::server-stream-closed"
     "clgrpc.http2::release-stream" "clgrpc.http2::recycle-stream" "clgrpc.http2:release-stream"
     "clgrpc.server::count-end" "clgrpc.client::client-stream-closed" "clgrpc.rpc:end-call"
     "clgrpc.rpc::end-call")
    ("creation" "clgrpc.server::server-headers" "clgrpc.http2::receive-headers"
     "clgrpc.http2::receive-request" "clgrpc.http2::receive-block"
     "clgrpc.hpack:decode-block" "clgrpc.server::request-of" "clgrpc.server::start-call"
     "clgrpc.client::submit" "clgrpc.client::write-head" "clgrpc.http2:open-stream"
     "clgrpc.calling::check-call-options" "clgrpc.client::begin-call")
    ("completion" "clgrpc.server::conclude" "clgrpc.server::reply-now"
     "clgrpc.server::server-reply" "clgrpc.server::server-finish" "clgrpc.server::write-end"
     "clgrpc.server::write-trailers" "clgrpc.server::write-answer-head"
     "clgrpc.server::post-reply" "clgrpc.server::finish-with-condition"
     "clgrpc.client::client-headers" "clgrpc.client::client-data"
     "clgrpc.client::client-trailers" "clgrpc.http2::receive-response"
     "clgrpc.http2::receive-trailers")
    ("request" "clgrpc.server::server-data" "clgrpc.server::deliver-request"
     "clgrpc.server::half-close-request" "clgrpc.server::end-of-request"
     "clgrpc.server::deliver-to-stream" "clgrpc.server::half-close-stream"
     "clgrpc.http2::receive-data" "clgrpc.wire:receive-data" "clgrpc.wire::receive-data"
     "clgrpc.wire:write-message" "clgrpc.wire::write-message"
     "clgrpc.client::encode-unless-short")
    ("handler" "clgrpc.server::run-handler" "clgrpc.serving:answer-of"
     "clgrpc.server::run-inline" "clgrpc.server::run-call" "clgrpc.wire::run-callbacks"
     "clgrpc.wire::run-callback" "clgrpc.loop:call-user" "clgrpc.loop::call-user")
    ("send" "clgrpc.loop::flush-phase" "clgrpc.loop::send-output" "clgrpc.loop::write-output"
     "clgrpc.loop::flush-connection" "clgrpc.loop::flush-and-close" "clgrpc.loop::flush-large")
    ("receive" "clgrpc.loop::read-phase" "clgrpc.loop::read-connection"
     "clgrpc.loop::take-input" "clgrpc.loop::call-input" "clgrpc.loop::read-into-area")
    ("loop" "clgrpc.loop::run-turn" "clgrpc.loop::run-as-holder" "clgrpc.loop::run-in-thread"
     "clgrpc.loop::launch-event-loop" "clgrpc.loop:run-event-loop"))
  "The phases of a call, and their functions. Work for all connections of a turn together belongs to
separate phases: waiting, receiving, sending.")

(defparameter *system-call-phases*
  '(("send" "__send" "send" "__libc_send" "__sys_sendto" "__x64_sys_sendto" "__arm64_sys_sendto"
     "__x64_sys_sendmsg")
    ("receive" "__libc_recv" "recv" "__recv" "__sys_recvfrom" "__x64_sys_recvfrom"
     "__arm64_sys_recvfrom" "__x64_sys_recvmsg")
    ("wait" "epoll_wait" "__x64_sys_epoll_wait" "__arm64_sys_epoll_pwait"
     "__x64_sys_epoll_pwait"))
  "The phases of system calls. This table is needed because a stack does not always show the caller
of a function of the C library.")

(defparameter *phase-order*
  '("creation" "request" "handler" "completion" "destruction" "receive" "send" "wait" "loop"
    "collection" "switch" "other")
  "The phases as reports list them.")

(defparameter *phase-table*
  (let ((table (make-hash-table :test 'equal)))
    (loop for (phase . names) in *phases*
          do (dolist (name names)
               (setf (gethash (remove #\: name) table) phase)))
    (loop for (phase . names) in *system-call-phases*
          do (dolist (name names) (setf (gethash name table) phase)))
    table)
  "From names of functions, without colons, to phases.")

(defun bare-name (name)
  "NAME, a Lisp function's, without its marks of an inner function or an entry point."
  (let ((start 0) (end (length name)))
    (when (and (plusp end) (char= #\( (char name 0)))
      (let ((in (search " :in " name)))
        (setf start (if in (+ in 5) (1+ (or (position #\Space name) 0)))
              end (or (position-if (lambda (char) (find char " )")) name :start start) end))))
    (subseq name start end)))

(defun name-phase (name)
  (values (gethash name *phase-table*)))

;;; Frames, stacks

(defun make-lisp-frame (name)
  (make-frame :name name :kind :lisp :area (lisp-area name)
              :phase (name-phase (remove #\: (bare-name name)))))

(defun make-kernel-frame (name)
  (make-frame :name name :kind :kernel :area (kernel-area name) :phase (name-phase name)))

(defun make-native-frame (name image)
  (let ((area (native-area name image)))
    (make-frame :name name :kind :native :area area
                :phase (if (equal area "collector") "collection" (name-phase name)))))

(defun stack-area (frames)
  "The subsystem of a sample with the stack FRAMES, innermost first. All work of the garbage
collector, including the work of the kernel for it, belongs to the collector."
  (cond ((find "collector" frames :key #'frame-area :test #'equal) "collector")
        ((null frames) "unknown")
        ((eq :unknown (frame-kind (first frames))) "unknown")
        (t (let ((frame (find-if #'frame-area frames)))
             (cond (frame (frame-area frame))
                   ((eq :kernel (frame-kind (first frames))) "kernel: other")
                   (t "lisp"))))))

(defun stack-phase (frames)
  "The phase of a call in which a sample with the stack FRAMES, innermost first, was taken."
  (if (find "collector" frames :key #'frame-area :test #'equal)
      "collection"
      (let ((frame (find-if #'frame-phase frames)))
        (if frame (frame-phase frame) "other"))))
