;;;; The messages that a stream of requests has sent, kept until its response begins, so that the
;;;; call can be tried again, or on another stream beside. All are kept if the method has a policy
;;;; for that, else the first few, for a server that has not seen the call (resend-octets and
;;;; resend-messages); and only while there is room for them (base/replay.lisp). Everything here
;;;; runs on the call's loop.

(in-package #:clgrpc.wire)

(define-hot (call-replay :inline t) ((call wire-call)) (or null replay)
  "The REPLAY of CALL, or nil if its messages are not kept, or not any more."
  (let ((parts (call-wire-parts call)))
    (and parts (the (or null replay) (wire-parts-replay parts)))))

(defun drop-replay (call)
  "Forget the messages that CALL has sent. The collector frees their octets, since some may be
queued still."
  (let ((replay (call-replay call)))
    (when replay
      (release-replay replay)
      (setf (wire-parts-replay (ensure-wire-parts call)) nil))))

(defun begin-replay (call limit &optional (messages most-positive-fixnum))
  "Keep what CALL, which has sent nothing so far, will send, up to LIMIT octets and MESSAGES,
whatever it was told before."
  (cond ((plusp limit)
         (setf (wire-parts-replay (ensure-wire-parts call))
               (make-replay (endpoint-replays (wire-call-endpoint call)) limit messages)))
        (t (drop-replay call))))

(define-hot (encoded-length :inline t) ((encoded (or octets parcel))) index
  "How many octets ENCODED, of ENCODE-MESSAGE, will be sent as."
  (if (typep encoded 'parcel) (parcel-end encoded) (length encoded)))

(defun encoded-octets (encoded)
  "The octets of ENCODED, of ENCODE-MESSAGE, from its prefix on."
  (if (typep encoded 'parcel) (parcel-octets encoded) encoded))

(defun reads-compressed-p (stream call)
  "True if the peer of STREAM can read what CALL compresses, as far as is known."
  (let* ((compression (compression-of call))
         (encoding (and compression (compression-outgoing compression)))
         (accepted (link-accepted (http2:connection-user (http2:stream-connection stream)))))
    (or (null encoding)
        (eq :unknown accepted)
        (and (member encoding accepted) t))))

(defun uncompressed (call encoded)
  "ENCODED, of ENCODE-MESSAGE for CALL, as fresh octets that are not compressed. It stays as it is."
  (multiple-value-bind (outcome octets length)
      (os:inflate-octets (encoding-name (compression-outgoing (compression-of call)))
                         (parcel-octets encoded) +prefix-octets+ (parcel-end encoded)
                         (parcel-plain encoded))
    (assert (eq :ok outcome))
    (let ((plain (make-octets (+ +prefix-octets+ length))))
      (setf (u32be plain 1) length)
      (copy-octets octets 0 length plain +prefix-octets+)
      (give-octets-back octets)
      plain)))

(define-hot (fitting :inline t) ((call wire-call) (stream http2:stream)
                                 (encoded (or octets parcel)))
    (or octets parcel)
  "ENCODED, of ENCODE-MESSAGE for CALL, as the peer of STREAM can read it."
  (if (and (compression-of call)
           (typep encoded 'parcel)
           (parcel-plain encoded)
           (not (reads-compressed-p stream call)))
      (uncompressed call encoded)
      encoded))

(defun sent-encoding (call encoded)
  "How ENCODED, of ENCODE-MESSAGE for CALL, is compressed, a keyword, or nil."
  (and (= 1 (aref (the octets (encoded-octets encoded)) 0))
       (encoding-name (compression-outgoing (compression-of call)))))

(defun note-sent (call stream encoded)
  "ENCODED, of ENCODE-MESSAGE, is about to be written to STREAM of CALL, for the first time or
again. In a dialect of its own it may have no prefix."
  (note-message-sent (http2:connection-user (http2:stream-connection stream)))
  (tell-sent call stream (max 0 (- (encoded-length encoded) +prefix-octets+))
             (and (typep encoded 'parcel) (parcel-plain encoded))))

(defun note-first-sent (call encoded)
  "As NOTE-SENT, of ENCODED that CALL writes to its own stream, for the first time if it is a
stream's."
  (unless (wire-call-dialect call)
    (observe content-sent (call-observer call) call (encoded-octets encoded) +prefix-octets+
             (encoded-length encoded) (sent-encoding call encoded)))
  (note-sent call (wire-call-stream call) encoded))

(defun keep-for-replay (call replay encoded)
  "Keep ENCODED, which CALL sends, in REPLAY and return true. If there is no room for it, keep
nothing of CALL any more and return false."
  (or (keep-message replay encoded (encoded-length encoded)
                        (options-total-replay-octets (wire-call-options call)))
      (progn (drop-replay call) nil)))

(define-hot write-kept ((stream http2:stream) encoded (last boolean)) null
  "Send ENCODED, of ENCODE-MESSAGE, on STREAM; it stays the call's and is not given to the store."
  (etypecase encoded
    (octets (http2:send-data stream encoded 0 (length encoded) last))
    (parcel (http2:send-data stream (parcel-octets encoded) 0 (parcel-end encoded) last)))
  nil)

(defun write-replay (call stream)
  "Send on STREAM the messages that CALL has sent so far."
  (let ((replay (call-replay call)))
    (when replay
      (dolist (kept (reverse (replay-messages replay)))
        (let ((encoded (fitting call stream kept)))
          (note-sent call stream encoded)
          (write-kept stream encoded nil))))))
