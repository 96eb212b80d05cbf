;;;; Compression at the client (gRPC's document "Compression"): requests are compressed by the
;;;; setting of the channel or call. A server whose headers do not list the encoding gets them
;;;; uncompressed (PLAIN-ONLY-P). If no server that has named its encodings accepts the encoding, no
;;;; request is compressed. Every request lists the encodings that we accept.

(in-package #:clgrpc.client)

(defun begin-compression (call encoding)
  "Let CALL, which has not begun, compress with ENCODING if a server of its channel may accept that
encoding."
  (unless (member encoding (core-refused (client-call-core call)))
    (setf (wire:outgoing-encoding call) encoding)))

(defun client-change-encoding (call name)
  "The operation CHANGE-ENCODING."
  (declare (ignore name))
  (misuse "~A has begun, so its compression cannot change; give :compression to the stub." call))

(defun review-refused (core)
  "Update the encodings that no server of CORE accepts, after new headers of a server."
  (let ((known (loop for subchannel in (core-subchannels core)
                     append (loop for link in (connection-set-links
                                               (subchannel-connection-set subchannel))
                                  unless (eq :unknown (client-link-accepted link))
                                    collect (client-link-accepted link)))))
    (setf (core-refused core)
          (and known
               (remove-if (lambda (encoding)
                            (some (lambda (accepted) (member encoding accepted)) known))
                          (remove-if-not #'encoding:encoding-open-p (encoding:encodings)))))))

(defun note-accepted-encodings (link list)
  "Remember the encodings that LINK's server accepts, if the header LIST has them."
  (let* ((field (hpack:find-field list "grpc-accept-encoding"))
         (accepted (and field (wire:accepted-encodings field))))
    (when (and field (not (equal accepted (client-link-accepted link))))
      (setf (client-link-accepted link) accepted)
      (dolist (owner (connection-set-owners (client-link-owner link)))
        (review-refused (subchannel-core owner))))))

(defun response-encoding (list)
  "The encoding of the response that begins with the header LIST, nil, or :unknown and a text for
the error."
  (let ((field (hpack:find-field list "grpc-encoding")))
    (if field (wire:parse-encoding (hpack:field-value field)) nil)))

(defun encoding-problem (list)
  "Nil if we can read the encoding that the header LIST names, else a list of a status and a text."
  (multiple-value-bind (encoding text) (response-encoding list)
    (when (eq :unknown encoding) (list :internal text))))

(defun note-encodings (call list)
  "Note the encodings in the header LIST of CALL's valid response. Return true if the messages of
CALL may be compressed."
  (note-accepted-encodings (client-call-link call) list)
  (when-let ((encoding (response-encoding list)))
    (setf (wire:incoming-encoding call) encoding)
    t))

(define-hot plain-only-p ((call client-call) (stream http2:stream)) boolean
  "True if the server of STREAM cannot read the compressed messages of CALL, as far as is known."
  (let ((encoding (wire:outgoing-encoding call))
        (accepted (client-link-accepted (stream-link stream))))
    (not (or (null encoding)
             (eq :unknown accepted)
             (member encoding accepted)))))
