;;;; Metadata: an alist of lower-case strings to strings, or to octets if the name ends in "-bin"
;;;; (gRPC over HTTP/2, "Custom-Metadata"). Names that gRPC reserves are refused. A call keeps the
;;;; metadata of its peer as a vector in its transport's own form; the operation METADATA makes the
;;;; alist on demand.

(in-package #:clgrpc.status)

(defun binary-name-p (name)
  "True if NAME, a string, ends in -bin: its values are octets."
  (let ((start (- (length name) 4)))
    (and (plusp start) (string= "-bin" name :start2 start))))

(defun name-char-p (char)
  (or (char<= #\a char #\z) (char<= #\0 char #\9) (find char "_-.")))

(defun valid-name-p (name)
  (and (stringp name) (plusp (length name)) (every #'name-char-p name)))

(defun reserved-name-p (name)
  (or (and (> (length name) 5) (string= "grpc-" name :end2 5)
           ;; a handler may set this entry (gRFC A6)
           (string/= "grpc-retry-pushback-ms" name))
      (member name '("content-type" "te" "host" "connection" "transfer-encoding" "keep-alive"
                     "proxy-connection" "upgrade" "content-length" "user-agent")
              :test #'string=)))

(defun sendable-char-p (char)
  (char<= #\Space char #\~))

(defun refuse-text (what kind text test)
  "Signal MISUSE, since TEXT, the part WHAT of metadata, is not a string or has a character for
which TEST is false; KIND describes valid texts. The error does not show TEXT, because TEXT may be
secret, such as a token that was read with the end of its line, or given in place of the name."
  (if (stringp text)
      (let ((at (position-if-not test text)))
        (misuse "~A must be ~A, but has ~:[no characters~;~:*~S at ~D of ~D~]."
                what kind (and at (char text at)) at (length text)))
      (misuse "~A must be ~A, not a value of the type ~S." what kind (type-of text))))

(defun check-metadata (metadata)
  "Return METADATA if it is an alist that may be sent; else signal MISUSE, which names the entry and
shows neither its value nor an invalid name."
  (unless (listp metadata)
    (misuse "Metadata are an alist, not a value of the type ~S." (type-of metadata)))
  (loop for entry in metadata
        for number from 0
        do (unless (consp entry)
             (misuse "Metadata are an alist; an element of the type ~S is not a pair."
                     (type-of entry)))
           (destructuring-bind (name . value) entry
             (unless (valid-name-p name)
               (refuse-text (format nil "The name in entry ~D of metadata" number)
                            "a string of lower-case letters, digits, and _ - ."
                            name #'name-char-p))
             (when (reserved-name-p name)
               (misuse "The metadata name ~S is reserved for gRPC." name))
             (cond ((binary-name-p name)
                    (unless (typep value '(vector octet))
                      (misuse "The value of ~S must be octets, since its name ends in -bin." name)))
                   ((not (and (stringp value) (every #'sendable-char-p value)))
                    (refuse-text (format nil "The value of ~S" name)
                                 "a string of printable ASCII" value #'sendable-char-p)))))
  metadata)

(defun sendable-metadata (metadata)
  "The entries of METADATA, an alist from a peer, that may be forwarded: all except those of gRPC
itself and of a connection."
  (remove-if-not (lambda (entry)
                   (and (valid-name-p (car entry))
                        (not (reserved-name-p (car entry)))
                        (or (binary-name-p (car entry))
                            (every #'sendable-char-p (cdr entry)))))
                 metadata))
