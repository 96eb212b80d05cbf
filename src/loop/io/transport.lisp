;;;; A transport: how a connection reads, writes, shuts down and closes. The functions of a kind are
;;;; shared by all its transports; STATE is theirs. TCP is the kind that stands here.
;;;;
;;;; What they answer: n from 0, or +WANTS-READ+ or +WANTS-WRITE+ (not now: try again when the
;;;; descriptor can be read or written), or a negated errno. A read that gets fewer octets than
;;;; there is room for, +WANTS-READ+, or a write that takes fewer than it was given, means that no
;;;; more can be had now, unless the read has set MORE. A read of 0 means that the peer will send no
;;;; more. A transport that finds a fault of its own answers +BROKEN+ and says in FAILURE which; the
;;;; peer has been told.

(in-package #:clgrpc.loop)

(defconstant +wants-read+ -10001
  "Not before the descriptor can be read.")
(defconstant +wants-write+ -10002
  "Not before the descriptor can be written.")
(defconstant +broken+ -10003
  "Never again; the transport's FAILURE says why.")

(defstruct (transport-kind (:copier nil))
  "How all transports of a kind work. The functions run on the loop."
  (name "" :type string :read-only t)   ; for people
  (read nil :type function :read-only t) ; (transport octets start end)
  (write nil :type function :read-only t) ; (transport octets start end)
  (shutdown nil :type function :read-only t) ; (transport) ends our output
  (close nil :type function :read-only t)) ; (transport), called once

(declaim (sb-ext:freeze-type transport-kind))

(defstruct (transport (:constructor make-transport (kind descriptor peer &optional state))
                      (:copier nil))
  "What a connection reads and writes."
  (kind nil :type transport-kind :read-only t) ; its functions
  (descriptor -1 :type fixnum)          ; what the poller knows it by; -1 once closed
  (peer "" :type string :read-only t)   ; the peer's address, as text
  (state nil)                           ; the kind's; a transport around another has that in it
  (loop nil)                            ; the loop among whose connections it counts
  (more nil :type boolean)              ; see TRANSPORT-MORE
  (failure nil :type (or null string))) ; see TRANSPORT-FAILURE

(declaim (sb-ext:freeze-type transport))

(document-functions
  make-transport-kind "Return a kind of transports; see the type TRANSPORT-KIND."
  make-transport "Return a transport of KIND for DESCRIPTOR, connected to PEER, with STATE."
  transport-kind "The TRANSPORT-KIND of TRANSPORT."
  transport-descriptor "The descriptor of TRANSPORT, as the poller knows it; -1 once closed."
  transport-peer "The address of the other end, as text."
  transport-state "The datum of the kind's functions."
  transport-more "True if the last read gave fewer octets than there was room for, or none, and more
can be had. SETFable by the kind's functions."
  transport-failure "Why TRANSPORT, which works, can no longer be used, as text, or NIL. SETFable by
the kind's functions.")

(defun limit-silence (loop transport seconds)
  "Have TRANSPORT, one of LOOP's network, fail once its peer has not acknowledged octets for
SECONDS, if the network knows such a limit."
  (funcall (network-limit-silence (event-loop-network loop)) (transport-descriptor transport)
           seconds)
  nil)

(defmethod print-object ((kind transport-kind) stream)
  (print-unreadable-object (kind stream :type t)
    (write-string (transport-kind-name kind) stream)))

(defmethod print-object ((transport transport) stream)
  (print-unreadable-object (transport stream :type t)
    (format stream "~A ~A~:[~; closed~]" (transport-kind-name (transport-kind transport))
            (transport-peer transport) (minusp (transport-descriptor transport)))))

(define-hot (transport-read :inline t)
    ((transport transport) (octets octets) (start index) (end index))
    fixnum
  "Read into OCTETS from START to END; see above for the answer."
  (let ((function (transport-kind-read (transport-kind transport))))
    (the (values fixnum &optional) (funcall function transport octets start end))))

(define-hot (transport-write :inline t)
    ((transport transport) (octets octets) (start index) (end index))
    fixnum
  "Write OCTETS from START to END; see above for the answer."
  (let ((function (transport-kind-write (transport-kind transport))))
    (the (values fixnum &optional) (funcall function transport octets start end))))

(defun shut-transport-down (transport)
  "Tell the peer that no more octets will come; what it sends can still be read."
  (funcall (transport-kind-shutdown (transport-kind transport)) transport))

;;; TCP

(define-hot read-tcp ((transport transport) (octets octets) (start index) (end index)) fixnum
  (let ((result (os:receive-octets (transport-descriptor transport) octets start end)))
    (if (= result (- os:+eagain+)) +wants-read+ result)))

(define-hot write-tcp ((transport transport) (octets octets) (start index) (end index)) fixnum
  (let ((result (os:send-octets (transport-descriptor transport) octets start end)))
    (if (= result (- os:+eagain+)) +wants-write+ result)))

(sb-ext:define-load-time-global **tcp**
  (make-transport-kind :name "TCP"
                       :read #'read-tcp :write #'write-tcp
                       :shutdown (lambda (transport)
                                   (os:shutdown-output (transport-descriptor transport)))
                       :close (lambda (transport)
                                (os:close-descriptor (transport-descriptor transport)))))

(defun make-tcp-transport (socket peer)
  "Return a transport for SOCKET, a connected non-blocking one, which now belongs to it; PEER is the
peer's address as text."
  (make-transport **tcp** socket peer))
