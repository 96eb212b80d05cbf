;;;; The status message, percent-encoded in grpc-message (gRPC over HTTP/2, "Status-Message"). The
;;;; decoding of the message is in client/attempts/status-mapping.lisp.

(in-package #:clgrpc.server)

(define-hot (percent-digit :inline t) ((value (unsigned-byte 4))) octet
  (char-code (schar "0123456789ABCDEF" value)))

(define-hot status-char-octets ((message simple-string) (i index)) (integer 1 12)
  "How many octets of grpc-message the character at I of MESSAGE becomes: one if it is not encoded,
else three for each octet of its UTF-8."
  (let ((code (char-code (schar message i))))
    (cond ((>= code #x10000) 12)
          ((>= code #x800) 9)
          ((>= code #x80) 6)
          ((= code #x20) (if (or (= i 0) (= i (1- (length message)))) 3 1))
          ((and (< #x20 code #x7F) (/= code #x25)) 1)
          (t 3))))

(define-hot status-message-end ((message simple-string) (limit index)) (values index index boolean)
  "Find the part of MESSAGE that fits into LIMIT octets. The values are the position of the end of
that beginning, the number of its octets, and true if MESSAGE continues after it. In that case LIMIT
has room for an ellipsis after it."
  (let ((size 0) (end 0) (end-size 0))
    (declare (type index size end end-size))
    (dotimes (i (length message) (values (length message) size nil))
      (when (<= (+ size 3) limit)
        (setf end i
              end-size size))
      (incf size (status-char-octets message i))
      (when (> size limit)
        (return (values end end-size t))))))

(define-hot write-status-char ((octets octets) (at index) (code (unsigned-byte 21))) index
  "Write the character CODE, percent-encoded, into OCTETS at AT; return the position after it."
  (flet ((write-octet (octet)
           (setf (aref octets at) #x25
                 (aref octets (+ at 1)) (percent-digit (ash octet -4))
                 (aref octets (+ at 2)) (percent-digit (logand octet 15)))
           (incf at 3))
         (later (shift) (logior #x80 (ldb (byte 6 shift) code))))
    ;; UTF-8 has no surrogates
    (when (<= #xD800 code #xDFFF) (setf code #xFFFD))
    (cond ((< code #x80) (write-octet code))
          ((< code #x800) (write-octet (logior #xC0 (ash code -6))))
          ((< code #x10000)
           (write-octet (logior #xE0 (ash code -12)))
           (write-octet (later 6)))
          (t (write-octet (logior #xF0 (ash code -18)))
             (write-octet (later 12))
             (write-octet (later 6))))
    (when (>= code #x80) (write-octet (later 0)))
    at))

(defun encode-status-message (message &optional (limit (ash 1 40)))
  "Return the octets of grpc-message for the string MESSAGE. If these would be more than LIMIT,
encode only the beginning of MESSAGE and an ellipsis. Blanks at the message's ends are escaped as
well, since HTTP/2 allows none there (RFC 9113 section 8.2.1)."
  (let ((message (coerce message 'simple-string)))
    (multiple-value-bind (end size cut) (status-message-end message limit)
      (let ((octets (make-octets (if (and cut (plusp end)) (+ size 3) size)))
            (at 0))
        (dotimes (i end)
          (let ((code (char-code (schar message i))))
            (cond ((= 1 (status-char-octets message i))
                   (setf (aref octets at) code)
                   (incf at))
                  (t (setf at (write-status-char octets at code))))))
        (fill octets (char-code #\.) :start at)
        octets))))
