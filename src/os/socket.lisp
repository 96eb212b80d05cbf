;;;; Sockets of streams (IPv4, IPv6 and unix) and of datagrams (IPv4 and IPv6), always non-blocking
;;;; and closed on exec. A call that would block returns the negated EAGAIN; a call that a signal
;;;; interrupted is repeated.

(in-package #:clgrpc.os)

(define-constants
  (+sock-dgram+ "SOCK_DGRAM" 2)
  (+sock-nonblock+ "SOCK_NONBLOCK" #x800)
  (+sock-cloexec+ "SOCK_CLOEXEC" #x80000)
  (+sol-socket+ "SOL_SOCKET" 1)
  (+so-reuseaddr+ "SO_REUSEADDR" 2)
  (+so-error+ "SO_ERROR" 4)
  (+so-linger+ "SO_LINGER" 13)
  (+so-reuseport+ "SO_REUSEPORT" 15)
  (+so-peercred+ "SO_PEERCRED" 17)
  (+so-attach-filter+ "SO_ATTACH_FILTER" 26)
  (+so-rcvtimeo+ "SO_RCVTIMEO" 20)
  (+so-sndtimeo+ "SO_SNDTIMEO" 21)
  (+rlimit-nofile+ "RLIMIT_NOFILE" 7)
  (+dirent-name+ "offsetof (struct dirent, d_name)" 19)
  (+ipproto-tcp+ "IPPROTO_TCP" 6)
  (+tcp-nodelay+ "TCP_NODELAY" 1)
  (+tcp-info+ "TCP_INFO" 11)
  (+tcp-user-timeout+ "TCP_USER_TIMEOUT" 18)
  (+shut-wr+ "SHUT_WR" 1)
  (+msg-nosignal+ "MSG_NOSIGNAL" #x4000))

;;; Opening and closing sockets

(defun open-socket (family)
  "Return a new stream socket of FAMILY, or a negated errno."
  (syscall ("socket" int) (int family)
           (int (logior +sock-stream+ +sock-nonblock+ +sock-cloexec+)) (int 0)))

(defun open-datagram-socket (family)
  "Return a new socket of FAMILY for datagrams (UDP), or a negated errno."
  (syscall ("socket" int) (int family)
           (int (logior +sock-dgram+ +sock-nonblock+ +sock-cloexec+)) (int 0)))

(defun bind-socket (socket address)
  "Bind SOCKET to the local ADDRESS."
  (declare (type octets address))
  (with-pinned-objects (address)
    (syscall ("bind" int) (int socket) (system-area-pointer (vector-sap address))
             ((unsigned 32) (length address)))))

(defun listen-socket (socket backlog)
  "Make SOCKET listen; up to BACKLOG connections may wait to be accepted."
  (syscall ("listen" int) (int socket) (int backlog)))

(define-hot accept-socket ((socket fixnum) (address octets)) result
  "Accept a connection that waits on SOCKET and write its peer's address to ADDRESS, which has
+ADDRESS-OCTETS+. Return the new socket."
  ;; this conses a pointer object for each connection
  (declare (sb-ext:muffle-conditions sb-ext:compiler-note))
  (with-alien ((length (unsigned 32) +address-octets+))
    (assert (>= (length address) +address-octets+))
    (with-pinned-objects (address)
      (make-writable address 0 +address-octets+) ; a connection is lost if its address does not fit
      (filling (address 0 +address-octets+)
        (retrying (syscall ("accept4" int) (int socket) (system-area-pointer (vector-sap address))
                           ((* (unsigned 32)) (addr length))
                           (int (logior +sock-nonblock+ +sock-cloexec+))))))))

(defun connect-socket (socket address)
  "Begin to connect SOCKET to ADDRESS. The negated EINPROGRESS means that the attempt is under way.
When it has ended, SOCKET is writable, or its option +SO-ERROR+ has the error."
  (declare (type octets address))
  (with-pinned-objects (address)
    (syscall ("connect" int) (int socket) (system-area-pointer (vector-sap address))
             ((unsigned 32) (length address)))))

(defun shutdown-output (socket)
  "Shut down the output of SOCKET: its peer reads no more octets after those already sent."
  (syscall ("shutdown" int) (int socket) (int +shut-wr+)))

(defun close-descriptor (descriptor)
  "Close DESCRIPTOR. Linux closes the descriptor even if a signal interrupts the system call."
  (syscall ("close" int) (int descriptor)))

;;; Octets

(define-hot receive-octets ((socket fixnum) (octets octets) (start index) (end index)) result
  "Receive into OCTETS from START to END. Return the number of received octets; 0 means that the
peer sends no more."
  (assert (<= start end (length octets)))
  (with-pinned-objects (octets)
    (filling (octets start end)
      (retrying (syscall ("recv" (signed 64)) (int socket)
                         (system-area-pointer (sap+ (vector-sap octets) start))
                         ((unsigned 64) (- end start)) (int 0))))))

(define-hot send-octets ((socket fixnum) (octets octets) (start index) (end index)) result
  "Send OCTETS from START to END. Return the number of octets that the kernel accepted."
  (assert (<= start end (length octets)))
  (with-pinned-objects (octets)
    (retrying (syscall ("send" (signed 64)) (int socket)
                       (system-area-pointer (sap+ (vector-sap octets) start))
                       ((unsigned 64) (- end start)) (int +msg-nosignal+)))))

;;; Options and addresses

(defun set-socket-option (socket level option value)
  "Set OPTION, a C int, of SOCKET to VALUE."
  (with-alien ((cell int value))
    (syscall ("setsockopt" int) (int socket) (int level) (int option)
             ((* int) (addr cell)) ((unsigned 32) 4))))

(defun drop-new-connections (socket)
  "Make the kernel drop the segments that would begin connections to SOCKET, a listening TCP socket,
as if the network had lost them. The sender repeats them, usually a second later. Connections that
already wait can still be accepted. Return a negated errno if the kernel refuses."
  ;; a classic BPF program; each row is a struct sock_filter: code, two jumps (true, false), operand
  (with-alien ((program (array (unsigned 64) 4))
               (header (array (unsigned 64) 2))) ; struct sock_fprog: length, pointer
    (loop for (code if-true if-false operand) in '((#x30 0 0 13)          ; load octet 13, the flags
                                                   ;; if SYN is among the flags
                                                   (#x45 0 1 2)
                                                   (#x06 0 0 0)           ; keep no octet
                                                   (#x06 0 0 #xFFFFFFFF)) ; keep all
          for i from 0
          do (setf (deref program i) (logior code (ash if-true 16) (ash if-false 24)
                                             (ash operand 32))))
    (setf (deref header 0) 4
          (deref header 1) (sap-int (sb-alien:alien-sap program)))
    (syscall ("setsockopt" int) (int socket) (int +sol-socket+) (int +so-attach-filter+)
             ((* (array (unsigned 64) 2)) (addr header)) ((unsigned 32) 16))))

(defun socket-option (socket level option)
  "Return the value of OPTION, a C int, of SOCKET. (The value of the option +SO-ERROR+ is a positive
errno, or 0.)"
  (with-alien ((cell int 0) (length (unsigned 32) 4))
    (let ((result (syscall ("getsockopt" int) (int socket) (int level) (int option)
                           ((* int) (addr cell)) ((* (unsigned 32)) (addr length)))))
      (if (failed-p result) result cell))))

(defun socket-option-octets (socket level option length)
  "Return the value of OPTION of SOCKET, a structure, as at most LENGTH octets, or nil if SOCKET has
no such option."
  (let ((octets (make-octets length)))
    (with-alien ((got (unsigned 32) length))
      (with-pinned-objects (octets)
        (unless (failed-p (syscall ("getsockopt" int) (int socket) (int level) (int option)
                                   (system-area-pointer (vector-sap octets))
                                   ((* (unsigned 32)) (addr got))))
          (subseq octets 0 (min got length)))))))

(macrolet ((define-name (name c-name documentation)
             `(defun ,name (socket)
                ,documentation
                (let ((octets (make-octets +address-octets+)))
                  (with-alien ((length (unsigned 32) +address-octets+))
                    (with-pinned-objects (octets)
                      (unless (failed-p (syscall (,c-name int) (int socket)
                                                 (system-area-pointer (vector-sap octets))
                                                 ((* (unsigned 32)) (addr length))))
                        (subseq octets 0 (min length (length octets))))))))))
  (define-name socket-address "getsockname" "The local address of SOCKET, or NIL.")
  (define-name peer-address "getpeername" "The address of SOCKET's peer, or NIL."))

(defun peer-user (socket)
  "Return the number of the user at the other end of SOCKET, a unix socket, or NIL if SOCKET is not
a unix socket."
  (with-alien ((credentials (array int 3)) ; struct ucred: process, user, group
               (length (unsigned 32) 12))
    (let ((result (syscall ("getsockopt" int) (int socket) (int +sol-socket+) (int +so-peercred+)
                           ((* (array int 3)) (addr credentials))
                           ((* (unsigned 32)) (addr length)))))
      (unless (or (failed-p result) (minusp (deref credentials 1)))
        (deref credentials 1)))))

(defun descriptor-limit ()
  "Return two values: the number of descriptors that this process may have (RLIMIT_NOFILE), and the
maximum to which the process may raise this limit."
  (with-alien ((limit (array (unsigned 64) 2))) ; struct rlimit: soft, hard
    (let ((result (syscall ("getrlimit" int) (int +rlimit-nofile+)
                           ((* (array (unsigned 64) 2)) (addr limit)))))
      (assert (not (failed-p result)))
      (values (deref limit 0) (deref limit 1)))))

(defun raise-descriptor-limit (wanted)
  "If this process may have fewer than WANTED descriptors, raise its limit to WANTED, or to the
maximum if that is lower. Return the number of descriptors that the process may have after that."
  (multiple-value-bind (soft hard) (descriptor-limit)
    (when (< soft (min wanted hard))
      (with-alien ((limit (array (unsigned 64) 2)))
        (setf (deref limit 0) (min wanted hard)
              (deref limit 1) hard)
        (syscall ("setrlimit" int) (int +rlimit-nofile+)
                 ((* (array (unsigned 64) 2)) (addr limit)))))
    (values (descriptor-limit))))

(defun open-descriptors (&optional (process "self"))
  "Return the open descriptors of PROCESS, the number of a process, by default this process, or the
empty list if the system does not list them."
  ;; not by DIRECTORY, which looks up each entry and fails if the descriptor is closed meanwhile
  (let ((listing (alien-funcall (extern-alien "opendir" (function system-area-pointer c-string))
                                (format nil "/proc/~A/fd" process))))
    (unless (zerop (sap-int listing))
      (unwind-protect
           (let ((own (and (equal process "self")
                           (syscall ("dirfd" int) (system-area-pointer listing)))))
             (loop for entry = (alien-funcall
                                (extern-alien "readdir" (function system-area-pointer
                                                                  system-area-pointer))
                                listing)
                   until (zerop (sap-int entry))
                   for descriptor = (entry-number entry)
                   unless (or (null descriptor) (eql descriptor own)) collect descriptor))
        (syscall ("closedir" int) (system-area-pointer listing))))))

(defun entry-number (entry)
  "Return the number that is the name of ENTRY, a struct dirent, or NIL if the name is not a
number."
  (loop with number = nil
        for i from +dirent-name+
        for digit = (digit-char-p (code-char (sb-sys:sap-ref-8 entry i)))
        while digit do (setf number (+ (* 10 (or number 0)) digit))
        finally (return number)))

(defun open-descriptor-count (&optional (process "self"))
  "The number of open descriptors of PROCESS, which is as for OPEN-DESCRIPTORS."
  (length (open-descriptors process)))
