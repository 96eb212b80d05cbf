;;;; Messages as octets: Protocol Buffers, or JSON (protobuf.dev, "ProtoJSON format"). In JSON,
;;;; members that are no fields are passed over, as the peers of these protocols do.

(in-package #:clgrpc.web)

(defstruct (codec (:copier nil))
  "How messages are octets."
  (name nil :type keyword :read-only t) ; :proto or :json
  ;; (call octets start end): return the message; signal a PROTOBUF-ERROR. From any thread
  (decode nil :type function :read-only t)
  ;; (call message compress): return what WIRE:ENCODE-MESSAGE does. From any thread
  (encode nil :type function :read-only t)
  (text nil :type boolean :read-only t) ; decoding takes long, so the loop leaves it to others
  ;; of errors: what stands before the text of one that DECODE signals
  (preface "the message cannot be parsed: " :type string :read-only t))

(declaim (sb-ext:freeze-type codec))

(defmethod print-object ((codec codec) stream)
  (print-unreadable-object (codec stream :type t)
    (format stream "~(~A~)" (codec-name codec))))

(define-hot decode-proto ((call wire:wire-call) (octets octets) (start index) (end index)) t
  "The message of CALL that OCTETS are from START to END."
  (values (wire:parse-incoming call octets start end nil)))

(defun decoded-type (type)
  "The message type that JSON has for messages of TYPE, which may be a raw one."
  (if (protobuf:raw-type-p type) (protobuf:raw-type-decoded type) type))

(defun as-received (call message)
  "MESSAGE, which was in JSON, as the handler of CALL takes it: raw, if its method is so."
  (let ((type (rpc:incoming-type call)))
    (if (protobuf:raw-type-p type)
        (protobuf:make-raw-message type (protobuf:serialize message))
        message)))

(defun decoded-answer (call message)
  "MESSAGE, a raw one, decoded. What another server has sent may be no message: then signal an
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
  "MESSAGE, an answer of CALL's handler, decoded if it is raw; and the :FINDER that JSON of it
takes."
  (if (protobuf:raw-message-p message)
      (values (decoded-answer call message)
              (protobuf:raw-type-finder (protobuf:message-type-of message)))
      (values message #'protobuf:find-message-type)))

(defun decode-json (call octets start end)
  "The message of CALL that OCTETS are from START to END in JSON."
  (let ((options (wire:wire-call-options call))
        (declared (rpc:incoming-type call)))
    (as-received
     call
     (protobuf:parse-json-message (decoded-type declared) (subseq-octets octets start end)
                                  :ignore-unknown t
                                  :finder (or (and (protobuf:raw-type-p declared)
                                                   (protobuf:raw-type-finder declared))
                                              #'protobuf:find-message-type)
                                  :max-octets (max 1 (- end start))
                                  :max-message-depth (options-max-message-depth options)
                                  :max-decoded-octets (options-max-decoded-octets options)))))

(defun encode-json (call message compress)
  "MESSAGE, which CALL sends, in JSON, as WIRE:ENCODE-MESSAGE returns it."
  (let ((size (protobuf:measure (rpc:outgoing-type call) message)))
    (flet ((encode ()
             (multiple-value-bind (message finder) (as-sent call message)
               (wire:encode-text call (protobuf:message-json message :as :octets :finder finder)
                                 compress))))
      (if (<= size rpc:+long-octets+)
          (encode)
          (rpc:call-with-room call (* 6 size) (wire:wire-call-options call) #'encode)))))

(define-load-time-global **proto**
    (make-codec :name :proto :decode #'decode-proto :encode #'wire:encode-message)
  "Protocol Buffers.")

(define-load-time-global **json**
    (make-codec :name :json :decode #'decode-json :encode #'encode-json :text t)
  "JSON.")
