;;;; The part of a handshake that a client sends unencrypted (RFC 8446 sections 4 and 5.1), as far
;;;; as a server must examine it before OpenSSL does. OpenSSL allocates room for a whole message
;;;; when it has read the message's length: nine octets of a ClientHello make it allocate 170,000.
;;;; So the lengths are checked first, and OpenSSL does not get a message that is too long.
;;;;
;;;; Encrypted octets cannot be examined. A client of TLS 1.2 encrypts all that comes after its
;;;; ChangeCipherSpec; a client of TLS 1.3 may send ChangeCipherSpec, too, even before a second
;;;; ClientHello, and encrypts records of another kind. The only long encrypted message is
;;;; Certificate, for which OpenSSL has a limit of its own (os/tls-session.lisp).

(in-package #:clgrpc.loop)

(defconstant +change-cipher-spec-record+ 20)
(defconstant +handshake-record+ 22)

(defstruct (record-scan (:copier nil))
  "The position of the next octet in the records of a client's handshake."
  (header 0 :type (unsigned-byte 40))   ; octets of a record's header
  (header-count 0 :type (mod 6))        ; how many of the header's five octets have come
  (record-left 0 :type (unsigned-byte 16)) ; octets left of the record
  (length 0 :type (unsigned-byte 32))   ; octets of a message's header
  (length-count 0 :type (mod 5))        ; how many of the length's four octets have come
  (message-left 0 :type (unsigned-byte 24)) ; octets left of the message
  (encrypted nil :type boolean))        ; the rest is encrypted, so nothing more is examined

(declaim (sb-ext:freeze-type record-scan))

(defun record-kind (record-scan)
  (ldb (byte 8 32) (record-scan-header record-scan)))

(defun take-record-octet (record-scan octet version)
  "Examine OCTET, the next octet of a record's header."
  (setf (record-scan-header record-scan)
        (logior (ash (ldb (byte 32 0) (record-scan-header record-scan)) 8) octet))
  (when (= 5 (incf (record-scan-header-count record-scan)))
    (setf (record-scan-header-count record-scan) 0
          (record-scan-record-left record-scan) (ldb (byte 16 0) (record-scan-header record-scan)))
    (when (and (= +change-cipher-spec-record+ (record-kind record-scan))
               (string= "TLSv1.2" (funcall version)))
      (setf (record-scan-encrypted record-scan) t))))

(defun take-message-octet (record-scan octet)
  "Examine OCTET, the next octet of a message or of a message's header."
  (if (plusp (record-scan-message-left record-scan))
      (decf (record-scan-message-left record-scan))
      (progn
        (setf (record-scan-length record-scan)
              (logior (ash (ldb (byte 24 0) (record-scan-length record-scan)) 8) octet))
        (when (= 4 (incf (record-scan-length-count record-scan)))
          (setf (record-scan-length-count record-scan) 0
                (record-scan-message-left record-scan)
                (ldb (byte 24 0) (record-scan-length record-scan)))))))

(defun short-messages-p (record-scan octets end most version)
  "True unless a message of more than MOST octets begins before END in OCTETS, which are the next
octets from a client. VERSION is a function that returns the version of TLS that was agreed on, as
text."
  (declare (type octets octets) (type index end most) (type function version))
  (loop for i below end
        until (record-scan-encrypted record-scan)
        do (let ((octet (aref octets i)))
             (if (zerop (record-scan-record-left record-scan))
                 (take-record-octet record-scan octet version)
                 (progn
                   (decf (record-scan-record-left record-scan))
                   (when (= +handshake-record+ (record-kind record-scan))
                     (take-message-octet record-scan octet)))))
        always (<= (record-scan-message-left record-scan) most)))
