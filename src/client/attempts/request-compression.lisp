;;;; Compression as the client has it (gRPC's document "Compression"): requests go compressed as
;;;; channel or call ask for. A server that has said that it does not accept that gets them
;;;; uncompressed (FITTING); if all servers that have said something do not, no request is
;;;; compressed. What we accept goes with every request.

(in-package #:clgrpc.client)

(defun begin-compression (call encoding)
  "Have CALL, which has not begun, compress with ENCODING if some server of its channel may accept
that."
  (unless (member encoding (core-refused (client-call-core call)))
    (setf (wire:outgoing-encoding call) encoding)))

(defun client-change-encoding (call name)
  "The operation CHANGE-ENCODING."
  (declare (ignore name))
  (misuse "~A has begun; its stub takes :compression." call))

(defun review-refused (core)
  "A server of CORE has said what it accepts, which is news."
  (let ((known (loop for subchannel in (core-subchannels core)
                     append (loop for link in (connection-set-links
                                               (subchannel-connection-set subchannel))
                                  unless (eq :unknown (client-link-accepted link))
                                    collect (client-link-accepted link)))))
    (setf (core-refused core)
          (and known
               (remove-if (lambda (encoding)
                            (some (lambda (accepted) (member encoding accepted)) known))
                          (remove-if-not #'rpc:encoding-open-p (rpc:encodings)))))))

(defun note-accepted-encodings (link list)
  "Remember what LINK's server accepts, if the header LIST says."
  (let* ((field (hpack:find-field list "grpc-accept-encoding"))
         (accepted (and field (wire:accepted-encodings field))))
    (when (and field (not (equal accepted (client-link-accepted link))))
      (setf (client-link-accepted link) accepted)
      (dolist (owner (connection-set-owners (client-link-owner link)))
        (review-refused (subchannel-core owner))))))

(defun response-encoding (list)
  "The encoding of the response that begins with the header LIST, nil or :unknown; and what to say
of that."
  (let ((field (hpack:find-field list "grpc-encoding")))
    (if field (wire:parse-encoding (hpack:field-value field)) nil)))

(defun encoding-problem (list)
  "Nil if we can read the encoding that the header LIST says, else (status text)."
  (multiple-value-bind (encoding text) (response-encoding list)
    (when (eq :unknown encoding) (list :internal text))))

(defun note-encodings (call list)
  "Note what the header LIST of CALL's good response says of compression. Return true if its
messages may be compressed."
  (note-accepted-encodings (client-call-link call) list)
  (let ((encoding (response-encoding list)))
    (when encoding
      (setf (wire:incoming-encoding call) encoding)
      t)))

;;; As the peer of a stream can read it

(defun reads-compressed-p (stream call)
  "True if the peer of STREAM can read what CALL compresses, as far as is known."
  (let ((encoding (wire:outgoing-encoding call))
        (accepted (client-link-accepted (stream-link stream))))
    (or (null encoding)
        (eq :unknown accepted)
        (and (member encoding accepted) t))))

(define-hot fitting ((call client-call) (stream http2:stream) (encoded (or octets wire:parcel)))
    (or null octets wire:parcel)
  "ENCODED, of ENCODE-MESSAGE for CALL, as the peer of STREAM can read it; nil if CALL has ended
since there is no memory for that."
  (if (or (null (wire:outgoing-encoding call)) (reads-compressed-p stream call))
      encoded
      (wire:uncompressed call encoded)))
