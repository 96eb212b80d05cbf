;;;; Signals. SBCL runs a handler in whatever thread the signal has reached. Handlers of some
;;;; signals, such as SIGUSR1, run at any instruction of that thread, which crashes the process
;;;; sooner or later. Handlers of other signals, such as SIGTERM, run where that thread allows
;;;; interrupts, but where it may hold a lock that the handler needs. So no Lisp runs here when a
;;;; signal arrives: the kernel calls a few machine instructions, which set a word and wake a thread
;;;; that sleeps on the word (futex.lisp). The woken thread, one for each signal, calls the
;;;; function.

(in-package #:clgrpc.os)

(define-constants
  (+sa-flags+ "SA_RESTART | SA_ONSTACK" #x18000000)
  (+sigaction-octets+ "sizeof (struct sigaction)" 152)
  (+sa-handler-offset+ "offsetof (struct sigaction, sa_handler)" 0)
  (+sa-mask-offset+ "offsetof (struct sigaction, sa_mask)" 8)
  (+sa-flags-offset+ "offsetof (struct sigaction, sa_flags)" 136)
  (+prot-read-write+ "PROT_READ | PROT_WRITE" 3)
  (+prot-read-execute+ "PROT_READ | PROT_EXEC" 5)
  (+map-anonymous+ "MAP_PRIVATE | MAP_ANONYMOUS" #x22))

(defconstant +page-octets+ 4096)

(defparameter *reserved-signals*
  (list +sigkill+ +sigstop+ +sigusr2+ +sigurg+ +sigalrm+ +sigsegv+ +sigbus+ +sigill+ +sigtrap+
        +sigfpe+ 32 33)
  "The signals that cannot be handled. The kernel reserves two, and the C library 32 and 33. SBCL
uses SIGUSR2 to stop threads for a collection, SIGURG to interrupt a thread, SIGALRM for timers such
as that of WITH-TIMEOUT, and the others to notice errors and writes to protected pages.")

(defun may-handle-signal-p (number)
  "True if NUMBER, any object, is the number of a signal that HANDLE-SIGNAL accepts."
  (and (typep number '(integer 1 64))
       (not (member number *reserved-signals*))))

(defstruct (catcher (:copier nil))
  "The data for catching one signal. A catcher's pages are kept as long as the process lives,
because a thread may be executing the instructions at any time."
  (signal 0 :type fixnum)               ; the signal's number
  ;; the address of the page with the instructions, before the page of the word
  (address 0 :type sb-ext:word)
  (function nil :type (or null function)) ; the function that is called, or nil
  (thread nil))                         ; a thread that sleeps on the word while FUNCTION is set

(defglobal **catchers** '())

;; A C function that stores 1 in the first four octets of the next page and wakes one thread that
;; sleeps on these octets. The function makes the system call itself, so that not even errno is
;; changed.
(defparameter *catching-instructions*
  #+x86-64
  '(#xc7 #x05 #xf6 #x0f #x00 #x00 #x01 #x00 #x00 #x00 ; mov dword [rip+4086], 1
    #xb8 #xca #x00 #x00 #x00            ; mov eax, 202: futex
    #x48 #x8d #x3d #xea #x0f #x00 #x00  ; lea rdi, [rip+4074]
    #xbe #x81 #x00 #x00 #x00            ; mov esi, 129: FUTEX_WAKE_PRIVATE
    #xba #x01 #x00 #x00 #x00            ; mov edx, 1
    #x0f #x05                           ; syscall
    #xc3)                               ; ret
  #+arm64
  '(#x00 #x80 #x00 #x10                 ; adr x0, 4096 octets further
    #x21 #x00 #x80 #x52                 ; mov w1, 1
    #x01 #x00 #x00 #xb9                 ; str w1, [x0]
    #x21 #x10 #x80 #x52                 ; mov w1, 129: FUTEX_WAKE_PRIVATE
    #x22 #x00 #x80 #x52                 ; mov w2, 1
    #x48 #x0c #x80 #xd2                 ; mov x8, 98: futex
    #x01 #x00 #x00 #xd4                 ; svc 0
    #xc0 #x03 #x5f #xd6)                ; ret
  "The instructions that the kernel calls when a signal arrives.")

(defun must-succeed (operation value)
  "Return VALUE, the result of a system call; if it is a failure, signal an error that names
OPERATION."
  (when (failed-p value) (error "Cannot ~A: ~A." operation (errno-text value)))
  value)

(defun map-catcher-page ()
  "Return the address of a page of memory that has the instructions. The next page has the word."
  (let ((address (must-succeed "map memory"
                               (syscall ("mmap" (signed 64)) ((unsigned 64) 0)
                                        ((unsigned 64) (* 2 +page-octets+))
                                        (int +prot-read-write+) (int +map-anonymous+) (int -1)
                                        ((signed 64) 0)))))
    (loop for octet in *catching-instructions*
          for i from 0
          do (setf (sb-sys:sap-ref-8 (int-sap address) i) octet))
    (must-succeed "make memory executable"
                  (syscall ("mprotect" int) ((unsigned 64) address)
                           ((unsigned 64) +page-octets+) (int +prot-read-execute+)))
    address))

(defun caught-word (catcher)
  "The address of CATCHER's word, which is 1 when its signal has arrived."
  (int-sap (+ +page-octets+ (catcher-address catcher))))

(defun run-signal-catcher (catcher)
  "Call CATCHER's function whenever its signal has arrived, as long as it has a function."
  (let ((word (caught-word catcher)))
    (loop
      (loop while (zerop (sb-sys:sap-ref-32 word 0)) do (wait-for-word word 0))
      (setf (sb-sys:sap-ref-32 word 0) 0) ; later signals cause another call
      (funcall (or (catcher-function catcher) (return))))))

(defun start-catcher (catcher)
  "Start the thread of CATCHER, and make its instructions the kernel's handler of the signal."
  ;; an earlier thread may have left a 1
  (setf (sb-sys:sap-ref-32 (caught-word catcher) 0) 0)
  (setf (catcher-thread catcher)
        (sb-thread:make-thread #'run-signal-catcher :name "clgrpc signals"
                                                    :arguments (list catcher)))
  (let ((action (make-octets +sigaction-octets+)))
    (setf (u64le action +sa-handler-offset+) (catcher-address catcher)
          (u32le action +sa-flags-offset+) +sa-flags+)
    ;; no signal interrupts the instructions: they run on the alternate stack, which SBCL's handler
    ;; of SIGUSR2 would mistake for the thread's usual stack, and the collector would end the
    ;; process
    (fill action #xFF :start +sa-mask-offset+ :end +sa-flags-offset+)
    (with-pinned-objects (action)
      (must-succeed "handle a signal"
                    (syscall ("sigaction" int) (int (catcher-signal catcher))
                             (system-area-pointer (vector-sap action)) ((unsigned 64) 0))))))

(defun find-catcher (signal)
  "Return the CATCHER of SIGNAL, or nil if it has none."
  (find signal **catchers** :key #'catcher-signal))

(defun release-signal (signal)
  "End the thread that waits for SIGNAL, if there is one. The action of SIGNAL must have been
changed before."
  (let* ((catcher (find-catcher signal))
         (thread (and catcher (shiftf (catcher-thread catcher) nil))))
    (when thread
      (setf (catcher-function catcher) nil
            (sb-sys:sap-ref-32 (caught-word catcher) 0) 1)
      (wake-at-word (caught-word catcher))
      (sb-thread:join-thread thread :default nil))))

(defun handle-signal (signal function)
  "Call FUNCTION, without arguments, in a separate thread whenever the process gets SIGNAL. FUNCTION
replaces the former function for SIGNAL; return that function, or nil if there was none. Several
signals in quick succession may cause a single call. From one thread at a time."
  (declare (type function function))
  (assert (may-handle-signal-p signal))
  (let ((catcher (or (find-catcher signal)
                     (first (push (make-catcher :signal signal :address (map-catcher-page))
                                  **catchers**)))))
    (prog1 (shiftf (catcher-function catcher) function)
      (unless (catcher-thread catcher) (start-catcher catcher)))))

(defun reset-signal (signal)
  "Restore the default action of SIGNAL, which is the kernel's or, for SIGINT, the signal of C-c,
Lisp's. Call this from one thread at a time, and not in the function of HANDLE-SIGNAL."
  (sb-sys:enable-interrupt signal (if (= signal +sigint+)
                                      (fdefinition (find-symbol "SIGINT-HANDLER" '#:sb-unix))
                                      :default))
  (release-signal signal)
  nil)

(defun forget-catchers ()
  "End all catchers, because no thread may wait for a signal when a core is saved, and a started
core must have no catchers."
  (loop for catcher in **catchers**
        when (catcher-thread catcher) do (reset-signal (catcher-signal catcher)))
  (setf **catchers** '()))

(pushnew 'forget-catchers sb-ext:*save-hooks*)
