;;;; A byte channel: the operations by which a connection reads, writes, shuts down and closes. All
;;;; byte channels of a kind share its functions; STATE is the data of these functions. The kind in
;;;; this file is TCP.
;;;;
;;;; The results of the operations: a number from 0; or +WANTS-READ+ or +WANTS-WRITE+, which mean
;;;; "not now: try again when the descriptor can be read or written"; or a negated errno. Nothing
;;;; more can be read now if a read returns +WANTS-READ+ or gets fewer octets than there is room
;;;; for, unless it has set MORE; nothing more can be written now if a write takes fewer octets than
;;;; it was given. A read of 0 means that the peer will send no more. A byte channel that detects an
;;;; error itself, such as invalid TLS, informs the peer, and then returns +BROKEN+ with the error
;;;; in FAILURE.

(in-package #:clgrpc.loop)

(defconstant +wants-read+ -10001
  "The result of an operation that will be possible when the descriptor can be read.")
(defconstant +wants-write+ -10002
  "The result of an operation that will be possible when the descriptor can be written.")
(defconstant +broken+ -10003
  "The result of an operation that will never be possible again; the byte channel's FAILURE has the
reason.")

(defstruct (byte-channel-kind (:copier nil))
  "The operations of all byte channels of a kind. The functions run on the loop."
  (name "" :type string :read-only t)   ; a name for people
  (read nil :type function :read-only t) ; (byte-channel octets start end)
  (write nil :type function :read-only t) ; (byte-channel octets start end)
  (shutdown nil :type function :read-only t) ; (byte-channel) ends our output
  (close nil :type function :read-only t)) ; (byte-channel), called once

(declaim (sb-ext:freeze-type byte-channel-kind))

(defstruct (byte-channel (:constructor make-byte-channel (kind descriptor peer &optional state))
                         (:copier nil))
  "A channel through which a connection reads and writes octets."
  (kind nil :type byte-channel-kind :read-only t) ; the functions of the channel's kind
  (descriptor -1 :type fixnum)          ; the channel's number in the poller; -1 once closed
  (peer "" :type string :read-only t)   ; the peer's address, as text
  ;; the datum of the byte channel's kind; it refers to the inner byte channel, if any
  (state nil)
  (loop nil)                            ; the loop that counts the channel as a connection
  (more nil :type boolean)              ; see BYTE-CHANNEL-MORE
  (failure nil :type (or null string))) ; see BYTE-CHANNEL-FAILURE

(declaim (sb-ext:freeze-type byte-channel))

(document-functions
  make-byte-channel-kind "Return a kind of byte channels; see the type BYTE-CHANNEL-KIND."
  make-byte-channel "Return a byte channel of KIND for DESCRIPTOR, connected to PEER, with STATE."
  byte-channel-kind "The BYTE-CHANNEL-KIND of BYTE-CHANNEL."
  byte-channel-descriptor "The descriptor of BYTE-CHANNEL, as the poller knows it; -1 once
  BYTE-CHANNEL is closed."
  byte-channel-peer "The address of the other end, as text."
  byte-channel-state "An object that belongs to the kind's functions."
  byte-channel-more "True if more octets can be read now although the last read returned fewer
octets than requested. Only the kind's functions may use SETF."
  byte-channel-failure "The error that BYTE-CHANNEL has detected itself and that has made it
unusable, as text; or NIL. Only the kind's functions may use SETF.")

(defmethod print-object ((kind byte-channel-kind) stream)
  (print-unreadable-object (kind stream :type t)
    (write-string (byte-channel-kind-name kind) stream)))

(define-printer (byte-channel byte-channel)
  "~A ~A~:[~; closed~]" (byte-channel-kind-name (byte-channel-kind byte-channel))
  (byte-channel-peer byte-channel) (minusp (byte-channel-descriptor byte-channel)))

(define-hot (byte-channel-read :inline t)
    ((byte-channel byte-channel) (octets octets) (start index) (end index))
    fixnum
  "Read into OCTETS from START to END; the head of this file explains the result."
  (let ((function (byte-channel-kind-read (byte-channel-kind byte-channel))))
    (the (values fixnum &optional) (funcall function byte-channel octets start end))))

(define-hot (byte-channel-write :inline t)
    ((byte-channel byte-channel) (octets octets) (start index) (end index))
    fixnum
  "Write OCTETS from START to END; the head of this file explains the result."
  (let ((function (byte-channel-kind-write (byte-channel-kind byte-channel))))
    (the (values fixnum &optional) (funcall function byte-channel octets start end))))

(defun shut-byte-channel-down (byte-channel)
  "Shut down the output of BYTE-CHANNEL. The peer gets no more octets, but its own octets can still
be read."
  (funcall (byte-channel-kind-shutdown (byte-channel-kind byte-channel)) byte-channel))

;;; TCP

(define-hot read-tcp ((byte-channel byte-channel) (octets octets) (start index) (end index)) fixnum
  (let ((result (os:receive-octets (byte-channel-descriptor byte-channel) octets start end)))
    (if (= result (- os:+eagain+)) +wants-read+ result)))

(define-hot write-tcp ((byte-channel byte-channel) (octets octets) (start index) (end index)) fixnum
  (let ((result (os:send-octets (byte-channel-descriptor byte-channel) octets start end)))
    (if (= result (- os:+eagain+)) +wants-write+ result)))

(sb-ext:define-load-time-global **tcp**
  (make-byte-channel-kind :name "TCP"
                          :read #'read-tcp :write #'write-tcp
                          :shutdown (lambda (byte-channel)
                                      (os:shutdown-output (byte-channel-descriptor byte-channel)))
                          :close (lambda (byte-channel)
                                   (os:close-descriptor (byte-channel-descriptor byte-channel)))))

(defun make-tcp-byte-channel (socket peer)
  "Return a byte channel for SOCKET, a connected non-blocking socket, which now belongs to the byte
channel; PEER is the peer's address as text."
  (make-byte-channel **tcp** socket peer))
