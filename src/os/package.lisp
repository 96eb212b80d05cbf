;;;; The only package whose code calls the kernel. The result of a call is a fixnum: the kernel's
;;;; result, or a negated errno; nothing here signals an error for a failed call. Frequent calls
;;;; allocate nothing. Linux on x86-64 and arm64.

(defpackage #:clgrpc.os
  (:use #:cl #:clgrpc.base)
  (:import-from #:sb-alien #:alien-funcall #:extern-alien #:with-alien #:addr #:deref #:unsigned
                #:signed #:int #:void #:c-string #:system-area-pointer)
  (:import-from #:sb-ext #:defglobal)
  (:import-from #:sb-sys #:with-pinned-objects #:vector-sap #:sap-int #:int-sap #:sap+)
  (:export
   ;; syscall.lisp
   #:result #:failed-p #:errno-text #:constant-table
   #:+eintr+ #:+eagain+ #:+einprogress+ #:+emfile+ #:+enfile+ #:+enobufs+ #:+enomem+ #:+enosys+
   #:+econnrefused+ #:+econnreset+ #:+econnaborted+ #:+eaddrinuse+ #:+etimedout+
   #:+epipe+ #:+ebadf+ #:+eperm+ #:+eproto+ #:+enoprotoopt+ #:+eopnotsupp+ #:+enonet+ #:+enetdown+
   #:+enetunreach+ #:+ehostdown+ #:+ehostunreach+
   #:+sighup+ #:+sigint+ #:+sigquit+ #:+sigusr1+ #:+sigusr2+ #:+sigterm+ #:+sigio+
   #:+sigchld+ #:+sigcont+
   #:+sigkill+ #:+sigstop+
   #:+sigwinch+
   ;; socket.lisp
   #:+af-unspec+ #:+af-inet+ #:+af-inet6+ #:+sol-socket+ #:+so-error+ #:+so-reuseaddr+
   #:+so-reuseport+ #:+ipproto-tcp+
   #:+tcp-nodelay+ #:+tcp-user-timeout+ #:+tcp-info+ #:+so-linger+ #:+so-rcvtimeo+
   #:+so-sndtimeo+
   #:open-socket #:open-datagram-socket #:bind-socket #:listen-socket #:accept-socket
   #:connect-socket
   #:receive-octets #:send-octets #:shutdown-output
   #:close-descriptor
   #:socket-option #:socket-option-octets #:set-socket-option
   #:drop-new-connections
   #:socket-address #:peer-address #:open-descriptors
   #:open-descriptor-count #:peer-user #:descriptor-limit #:raise-descriptor-limit
   ;; address.lisp
   #:+af-unix+ #:+address-octets+ #:make-address #:make-unix-address #:unix-address-name
   #:parse-address #:address-family #:address-port #:address-host #:address-network #:address-text
   #:lookup-name
   #:resolve-host #:interleave-families
   ;; file.lisp
   #:remove-file #:rename-file-to #:create-file #:open-to-write #:write-octets #:truncate-file
   #:file-size #:set-file-mode #:set-socket-mode #:socket-file-identity #:file-type #:+enxio+
   ;; epoll.lisp
   #:open-epoll #:watch-descriptor #:forget-descriptor #:make-event-area #:wait-for-events
   #:wait-for-events-until #:set-timer-slack
   #:event-flags #:event-token
   #:+event-in+ #:+event-out+ #:+event-error+ #:+event-hang-up+ #:+event-read-hang-up+
   #:make-poll-area #:set-polled
   #:polled-descriptor #:polled-flags #:poll-descriptors #:clear-eventfd #:open-eventfd
   #:write-eventfd
   ;; futex.lisp
   #:futex #:make-futex #:wait-for-futex #:wake-futex
   ;; stack.lisp
   #:protect-stack-end #:stack-half-used-p
   ;; processor.lisp
   #:processor-count #:processor-limit
   ;; process.lisp
   #:processor-ticks #:read-process #:process-cpu-seconds #:process-time-ns
   #:process-start-seconds #:process-virtual-octets
   #:process-resident-octets #:process-threads
   ;; signal.lisp
   #:handle-signal #:reset-signal #:may-handle-signal-p
   ;; library.lisp
   #:define-library #:open-library
   ;; zlib.lisp
   #:open-zlib #:zlib-format #:deflate-octets #:inflation #:inflate-octets
   #:inflate-beginning #:zlib-stream-count
   ;; zstd.lisp
   #:open-zstd #:zstd-octets #:expand-zstd
   #:end-idle-streams
   ;; openssl.lisp
   #:tls-error #:tls-error-text #:open-openssl #:openssl-instance #:openssl-open-p
   #:foreign-pointer
   ;; certificate.lisp
   #:certificate #:make-certificate #:first-certificate #:certificate-der #:certificate-subject
   #:certificate-issuer
   #:certificate-for-p #:certificate-names #:certificate-serial-number #:certificate-not-before
   #:certificate-not-after
   ;; signature.lisp
   #:private-key-kind #:sha256-digest #:sign-octets
   ;; tls-session.lisp
   #:+record-octets+ #:make-tls-context #:free-tls-context #:add-certificate-chain #:add-private-key
   #:add-roots #:add-root #:chain-root #:add-revocation-lists #:log-secrets #:add-system-roots
   #:host-name-p #:host-name-matches-p
   #:tls-area #:make-tls-area #:free-tls-area #:tls-area-octets #:tls-area-lent
   #:feed-area #:drain-area
   #:area-empty-p #:drop-unread #:empty-area
   #:open-tls-session #:close-tls-session #:tls-session-count #:shake-hands #:decrypt-octets
   #:encrypt-octets
   #:end-session-output #:update-keys #:session-failure #:session-alpn #:session-version
   #:session-cipher #:session-resumed-p #:session-octets
   #:session-certificate #:own-certificate
   #:presented-certificate
   #:session-end #:session-ticket
   #:free-session-ticket))
