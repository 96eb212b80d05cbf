;;;; How the kernel is called: SYSCALL calls a C function without allocation; the result -1 becomes
;;;; the negated errno. The kernel's constants are written down here, since Lisp has no headers to
;;;; read; a test compiles the table with cc, if that is installed, and compares. The constants are
;;;; the same on x86-64 and arm64 except for those in epoll.lisp.

(in-package #:clgrpc.os)

(deftype result ()
  "The value that a call of this package returns, which is a number that is not negative, or a
negated errno."
  '(signed-byte 62))

(defglobal **constants** '())

(defun constant-table ()
  "Return a list of (C-name value) of every constant of the kernel that this package uses."
  (reverse **constants**))

(defmacro define-constants (&body rows)
  "Define constants from ROWS of the form (name C-name value)."
  `(progn
     ,@(loop for (name c-name value) in rows
             collect `(defconstant ,name ,value ,(format nil "The kernel's ~A." c-name))
             collect `(pushnew '(,c-name ,value) **constants** :test #'equal))))

(define-constants
  (+eperm+ "EPERM" 1)
  (+eintr+ "EINTR" 4)
  (+ebadf+ "EBADF" 9)
  (+eagain+ "EAGAIN" 11)
  (+enomem+ "ENOMEM" 12)
  (+efault+ "EFAULT" 14)
  (+enfile+ "ENFILE" 23)
  (+emfile+ "EMFILE" 24)
  (+epipe+ "EPIPE" 32)
  (+enonet+ "ENONET" 64)
  (+eproto+ "EPROTO" 71)
  (+enoprotoopt+ "ENOPROTOOPT" 92)
  (+eopnotsupp+ "EOPNOTSUPP" 95)
  (+eaddrinuse+ "EADDRINUSE" 98)
  (+enetdown+ "ENETDOWN" 100)
  (+enetunreach+ "ENETUNREACH" 101)
  (+econnaborted+ "ECONNABORTED" 103)
  (+econnreset+ "ECONNRESET" 104)
  (+enobufs+ "ENOBUFS" 105)
  (+etimedout+ "ETIMEDOUT" 110)
  (+econnrefused+ "ECONNREFUSED" 111)
  (+ehostdown+ "EHOSTDOWN" 112)
  (+ehostunreach+ "EHOSTUNREACH" 113)
  (+einprogress+ "EINPROGRESS" 115)
  (+sighup+ "SIGHUP" 1)
  (+sigint+ "SIGINT" 2)
  (+sigquit+ "SIGQUIT" 3)
  (+sigill+ "SIGILL" 4)
  (+sigtrap+ "SIGTRAP" 5)
  (+sigbus+ "SIGBUS" 7)
  (+sigfpe+ "SIGFPE" 8)
  (+sigkill+ "SIGKILL" 9)
  (+sigusr1+ "SIGUSR1" 10)
  (+sigsegv+ "SIGSEGV" 11)
  (+sigusr2+ "SIGUSR2" 12)
  (+sigalrm+ "SIGALRM" 14)
  (+sigterm+ "SIGTERM" 15)
  (+sigchld+ "SIGCHLD" 17)
  (+sigcont+ "SIGCONT" 18)
  (+sigstop+ "SIGSTOP" 19)
  (+sigurg+ "SIGURG" 23)
  (+sigwinch+ "SIGWINCH" 28)
  (+sigio+ "SIGIO" 29)
  (+enosys+ "ENOSYS" 38))

(defmacro syscall ((name type) &rest arguments)
  "Call the C function NAME, whose result is a signed integer of TYPE, with ARGUMENTS of the form
(type value). Return the call's result, or the negated errno if the result is -1."
  `(let ((value (alien-funcall (extern-alien ,name (function ,type ,@(mapcar #'first arguments)))
                               ,@(mapcar #'second arguments))))
     (if (= value -1)
         (- (the (integer 1 4095) (sb-alien:get-errno)))
         (the result value))))

(defmacro retrying (&body call)
  "Do CALL again while a signal interrupts it; each garbage collection sends signals to threads."
  `(loop
     (let ((value (progn ,@call)))
       (declare (type result value))
       (unless (= value (- +eintr+)) (return value)))))

(defun make-writable (octets start end)
  "Write to each page of OCTETS between START and END without changing its contents."
  (declare (type octets octets) (type index start end))
  (flet ((touch (i)
           (setf (aref octets i) (aref octets i))))
    (loop for i of-type index from start below end by 4096
          do (touch i))
    (when (< start end) (touch (1- end)))))

(defmacro filling ((octets start end) &body call)
  "Do CALL, by which the kernel writes to OCTETS between START and END. In an SBCL without soft card
marks, such as 2.2.9 on arm64, the collector protects pages, even pages of vectors that were pinned
meanwhile. A store by Lisp removes the protection, but a store by the kernel fails. In this case the
macro stores into the pages, and does CALL again."
  `(let ((tries 100))
     (declare (type fixnum tries))
     (loop
       (let ((value (progn ,@call)))
         (declare (type result value))
         (unless (and (= value (- +efault+)) (plusp tries)) (return value))
         (decf tries)
         (make-writable ,octets ,start ,end)))))

(declaim (inline failed-p))
(defun failed-p (result)
  "True if RESULT is a negated errno."
  (minusp (the result result)))

(defun errno-text (result)
  "The system's text for RESULT, a negated errno."
  (alien-funcall (extern-alien "strerror" (function c-string int)) (- result)))
