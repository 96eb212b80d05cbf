;;;; Answers on their way to the peer: the operations SEND and REPLY. Messages are encoded as gRPC's
;;;; are, after an envelope of five octets, by the codec of the request; a protocol handler may
;;;; write the envelope or omit it. The only answer of a call waits, encoded, until the call ends,
;;;; so that the head can give its length and the call's status.

(in-package #:clgrpc.web)

(define-hot encode ((call server:server-call) message compress) t
  "MESSAGE, which CALL sends, as WIRE:ENCODE-MESSAGE returns it."
  (values (funcall (codec-encode (web-claim-codec (call-web-claim call))) call message compress)))

(define-hot note-part ((call server:server-call) encoded) null
  (let ((notes (call-web-notes call)))
    (setf (notes-sent notes)
          (ldb (byte 62 0) (+ (notes-sent notes)
                              (- (the index (wire:encoded-length encoded)) wire:+prefix-octets+)))))
  (wire:note-sent call encoded)
  nil)

;;; The only answer

(define-hot keep-answer ((call server:server-call) encoded) null
  "Keep ENCODED, the answer of CALL, which ends with :ok."
  (wire:ensure-headers call)
  (note-part call encoded)
  (setf (notes-answer (call-web-notes call)) encoded)
  (server:server-finish call :ok "" nil '())
  nil)

(defconstant +short-answer-octets+ 4096
  "The maximum number of octets of an answer that the loop encodes as text.")

(define-hot web-reply ((call server:server-call) message) boolean
  "The function REPLY of a protocol handler."
  (let ((outcome
          (handler-case
              (let ((size (protobuf:measure (rpc:outgoing-type call) message)))
                (declare (type index size))
                (if (or (wire:outgoing-encoding call)
                        (if (codec-text (web-claim-codec (call-web-claim call)))
                            (not (and (<= size +short-answer-octets+)
                                      (encodes-at-once-p call message size)))
                            (> size wire:+byte-buffer-octets+)))
                    nil
                    (encode call message nil)))
            ((or error storage-condition) (error)
              (serving:bad-answer-condition call message error)))))
    (cond ((null outcome) nil)
          ((status:failure-p outcome) (server:finish-with-condition call outcome) t)
          (t (keep-answer call outcome) t))))

(defun web-post-reply (call message)
  "The function POST-REPLY of a protocol handler."
  (server:post-reply-by call message #'encode #'keep-answer))

;;; Streams

(define-hot web-room ((call server:server-call)) fixnum
  "The operation ROOM."
  (- (options-send-budget-octets (wire:wire-call-options call))
     (wire:posted-octets call)
     (exchange:unsent-octets (server:call-http-request call))))

(defun web-unsent-octets (call)
  "The operation UNSENT-OCTETS."
  (+ (wire:posted-octets call) (exchange:unsent-octets (server:call-http-request call))))

(defun web-crowded (call)
  "The operation CROWDED."
  (< rpc:+long-octets+ (exchange:unsent-octets (server:call-http-request call))))

(defun tell-if-room (call)
  "Notify the sender that waits on CALL if there is room."
  (when (and (null (call-status call)) (rpc:room-p call)) (wire:tell-writable call)))

(defun web-writable (call)
  "The function WRITABLE of a protocol handler: the peer takes output, which is written just after
this function returns."
  (if (rpc:room-p call)
      (wire:tell-writable call)
      (loop:defer (wire:wire-call-loop call) #'tell-if-room call)))

(defun write-sent (call encoded)
  "Write ENCODED, a message of CALL's streamed answer, unless CALL has ended. On the loop."
  (unless (call-status call)
    (wire:ensure-headers call)
    (note-part call encoded)
    (funcall (web-protocol-handler-part (web-claim-handler (call-web-claim call))) call encoded)))

(defun web-send-message (call message compress)
  "Send MESSAGE from user code."
  (let* ((encoded (encode call message compress))
         (posted (plusp (wire:posted-octets call))))
    (wire:post-in-turn call (wire:encoded-length encoded)
                       (lambda ()
                         (write-sent call encoded)
                         (when posted (tell-if-room call))))))

(defun web-send (call message wait-p compress)
  "The operation SEND."
  (wire:send-in-room call wait-p (lambda () (web-send-message call message compress))))

;;; Output of protocol handlers

(define-hot write-encoded ((call server:server-call) encoded (start index) (last boolean)) null
  "Write ENCODED from START on, with its envelope if START is 0."
  (exchange:write-part (server:call-http-request call) (wire:encoded-octets encoded) start
                       (wire:encoded-length encoded) (typep encoded 'wire:byte-buffer) last)
  nil)

(define-hot write-octets ((call server:server-call) (octets octets) (last boolean)) null
  "Write OCTETS, which belong to the connection from now on."
  (exchange:write-part (server:call-http-request call) octets 0 (length octets) nil last)
  nil)

(defun base64-octets (octets start end)
  (ascii-octets (encode-base64 octets :start start :end end :padding t)))

(defun in-text (call encoded)
  "ENCODED, a message, as CALL writes it: unchanged, or in base64."
  (cond ((web-claim-text (call-web-claim call))
         (prog1 (base64-octets (wire:encoded-octets encoded) 0 (wire:encoded-length encoded))
           (when (typep encoded 'wire:byte-buffer)
             (give-octets-back (wire:byte-buffer-taken encoded)))))
        (t encoded)))

(defun write-enveloped (call encoded)
  "The function PART of protocol handlers whose messages are in envelopes."
  (write-encoded call (in-text call encoded) 0 nil))

(defun envelope (flag octets)
  "OCTETS in an envelope with FLAG."
  (let ((whole (make-octets (+ wire:+prefix-octets+ (length octets)))))
    (setf (aref whole 0) flag
          (u32be whole 1) (length octets))
    (replace whole octets :start1 wire:+prefix-octets+)))

(defun mark-headers (call)
  "Note that the head of CALL's answer is written; return true unless it was written before."
  (unless (wire:marked-p call :headers)
    (wire:mark-call call :headers)
    t))

(defun finish-enveloped (call end)
  "Write the rest of the answer of CALL, whose messages are in envelopes: its only answer, if it has
one, and END, octets that report how it ended. The head contains the length of the answer if nothing
is written yet."
  (let* ((claim (call-web-claim call))
         (answer (shiftf (notes-answer (call-web-notes call)) nil))
         (answer (and answer (in-text call answer)))
         (end (if (web-claim-text claim) (base64-octets end 0 (length end)) end)))
    (when (or (mark-headers call) answer) ; the head of a single answer is sent together with it
      (exchange:write-head (server:call-http-request call)
                           (heads-head (web-claim-heads claim) (wire:outgoing-encoding call))
                           (answer-headers call '())
                           (+ (length end) (if answer (wire:encoded-length answer) 0))))
    (server:note-served call)
    (when answer (write-encoded call answer 0 nil))
    (write-octets call end t)))
