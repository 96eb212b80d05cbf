;;;; Messages as octets: Protocol Buffers, or JSON (protobuf.dev, "ProtoJSON format"). In JSON,
;;;; unknown members are skipped, as peers of these protocols do.

(in-package #:clgrpc.web)

(defstruct (codec (:copier nil))
  "The conversion between messages and octets."
  (name nil :type keyword :read-only t) ; :proto or :json
  ;; (call octets start end): return the message, and about how much memory the messages inside it
  ;; take; signal a PROTOBUF-ERROR. From any thread; in user code if DECODES-AT-ONCE-P is false.
  ;; The function of a codec that is not text has two more &optional arguments, as DECODE-PROTO
  (decode nil :type function :read-only t)
  ;; (call message compress): return what WIRE:ENCODE-MESSAGE does. From any thread
  (encode nil :type function :read-only t)
  (text nil :type boolean :read-only t) ; decoding is slow: threads do it, not the loop
  ;; the words before the text of an error that DECODE signals
  (preface "the message cannot be parsed: " :type string :read-only t))

(declaim (sb-ext:freeze-type codec))

(define-printer (codec codec)
  "~(~A~)" (codec-name codec))

(define-hot decode-proto ((call server:server-call) (octets octets) (start index) (end index)
                          &optional (most (or null index) nil) (beyond (or null function) nil))
    (values t fixnum)
  "The message of CALL in OCTETS from START to END. MOST, if not nil, replaces the option
max-decoded-octets, and BEYOND is as for PROTOBUF:PARSE-RECEIVED."
  (let ((options (wire:wire-call-options call)))
    (multiple-value-bind (message kept inside)
        (protobuf:parse-received (rpc:incoming-type call) octets start end
                                 (options-max-message-depth options)
                                 (or most (options-max-decoded-octets options))
                                 nil :beyond beyond)
      (declare (ignore kept))
      (values message inside))))

(defun decoded-type (type)
  "The message type that defines the JSON of messages of TYPE, which may be a raw one."
  (if (protobuf:raw-type-p type) (protobuf:raw-type-decoded type) type))

(defun as-received (call message)
  "MESSAGE, read from JSON, in the form for the handler of CALL: a raw message if its method has raw
messages."
  (let ((type (rpc:incoming-type call)))
    (if (protobuf:raw-type-p type)
        (protobuf:make-raw-message type (protobuf:serialize message))
        message)))

(defun decoded-answer (call message)
  "MESSAGE, which is raw, decoded. A message from another server may be invalid: then signal an
RPC-ERROR for CALL."
  (let ((options (wire:wire-call-options call)))
    (handler-case (protobuf:parse-message
                   (protobuf:raw-type-decoded (protobuf:message-type-of message))
                   (protobuf:raw-message-octets message)
                   :max-message-depth (options-max-message-depth options)
                   :max-decoded-octets (options-max-decoded-octets options))
      (protobuf:protobuf-error (error)
        (error (status:make-rpc-error
                :internal :call call
                          :message (format nil "the answer cannot be parsed: ~A"
                                           (protobuf:protobuf-error-text error))))))))

(defun as-sent (call message)
  "Two values: MESSAGE, an answer of CALL's handler, decoded if it is raw; and the :FINDER for
writing its JSON."
  (if (protobuf:raw-message-p message)
      (values (decoded-answer call message)
              (protobuf:raw-type-finder (protobuf:message-type-of message)))
      (values message #'protobuf:find-message-type)))

(defun reading-limits (call)
  "The keywords for reading JSON of CALL's messages: the limits, and the source of types."
  (let ((options (wire:wire-call-options call))
        (declared (rpc:incoming-type call)))
    (list :finder (or (and (protobuf:raw-type-p declared) (protobuf:raw-type-finder declared))
                      #'protobuf:find-message-type)
          :max-message-depth (options-max-message-depth options)
          :max-decoded-octets (options-max-decoded-octets options))))

(defun decode-json (call octets start end)
  "Two values: the message of CALL in JSON in OCTETS from START to END, and the memory of the
messages inside it."
  (receive-as-text call (- end start)
                   (lambda ()
                     (apply #'protobuf:parse-json-message (decoded-type (rpc:incoming-type call))
                            (subseq-octets octets start end)
                            :ignore-unknown t :max-octets (max 1 (- end start))
                            (reading-limits call)))))

;;; Room in the heap. The limits of gRPC's messages bound a message in JSON that its handler gives
;;; or takes decoded. A raw message is decoded on the way, which may take hundreds of times its
;;; octets; so the room for the decoding is promised (rpc/room.lisp), unless it is little.

(defconstant +unpromised-octets+ (* 6 rpc:+long-octets+)
  "The maximum number of octets of a text that needs no promise of room in the heap: the length of
the JSON of the longest message that needs no promise.")

(defun text-room (call type size)
  "How many octets of the heap are needed to make JSON from a message of CALL, of TYPE and SIZE
octets, or to make the message from JSON of SIZE octets."
  (if (and (protobuf:raw-type-p type) (protobuf:raw-type-decoded type))
      (protobuf:decoded-room type size
                             (options-max-decoded-octets (wire:wire-call-options call)))
      (* 6 size)))

(defun decodes-at-once-p (call size)
  "True if a text of SIZE that CALL has received is decoded without a promise of room."
  (let ((type (rpc:incoming-type call)))
    (or (not (protobuf:raw-type-p type))
        (<= (text-room call type size) +unpromised-octets+))))

(defun receive-as-text (call size function)
  "Two values: the message of CALL that FUNCTION makes from a text of SIZE, in the form for its
handler, and the memory of the messages inside it."
  (flet ((receive ()
           (multiple-value-bind (message inside) (funcall function)
             (let ((received (as-received call message)))
               (values received (if (eq received message) inside 0))))))
    (if (decodes-at-once-p call size)
        (receive)
        (rpc:call-with-room call (text-room call (rpc:incoming-type call) size)
                            (wire:wire-call-options call) #'receive :long nil))))

(defun encodes-at-once-p (call message size)
  "True if MESSAGE, an answer of CALL, of SIZE octets, may be made text without reserving room in
the heap first."
  (<= (text-room call (protobuf:message-type-of message) size) +unpromised-octets+))

(defun send-as-text (call message function)
  "The result of FUNCTION, which makes MESSAGE, an answer of CALL, a text. If the text is long,
reserve room for it in the heap first."
  (let* ((size (protobuf:measure (rpc:outgoing-type call) message))
         (room (text-room call (protobuf:message-type-of message) size)))
    (if (<= room +unpromised-octets+)
        (funcall function)
        (rpc:call-with-room call room (wire:wire-call-options call) function
                            :long (and (< rpc:+long-octets+ size) (* 6 size))))))

(defun encode-json (call message compress)
  "MESSAGE, which CALL sends, in JSON, as WIRE:ENCODE-MESSAGE returns it."
  (send-as-text call message
                (lambda ()
                  (multiple-value-bind (message finder) (as-sent call message)
                    (wire:encode-octets call (protobuf:message-json message :as :octets
                                                                    :finder finder)
                                        compress)))))

(define-load-time-global **proto**
    (make-codec :name :proto :decode #'decode-proto :encode #'wire:encode-message)
  "Protocol Buffers.")

(define-load-time-global **json**
    (make-codec :name :json :decode #'decode-json :encode #'encode-json :text t)
  "JSON.")
