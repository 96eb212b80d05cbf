;;;; Certificates and keys: from PEM (RFC 7468) into OpenSSL, and the contents of a certificate (RFC
;;;; 5280) from OpenSSL as Lisp data. Each function frees OpenSSL's memory for the certificate
;;;; before it returns.

(in-package #:clgrpc.os)

(defmacro with-bio-over-text ((bio text) &body body)
  "Do BODY with BIO bound to a BIO that reads the octets of TEXT, a string."
  (let ((octets (gensym "OCTETS")))
    `(let ((,octets (string-octets ,text)))
       (with-pinned-objects (,octets)
         (let ((,bio (bio-new-mem-buf (sap-int (vector-sap ,octets)) (length ,octets))))
           (unwind-protect (progn ,@body)
             (bio-free ,bio)))))))

(defun call-with-parts (function text what part read release)
  "Call FUNCTION with each PART, such as \"certificate\", of TEXT, PEM, and its index from 0. READ
returns the next PART from a BIO, and RELEASE frees that PART. Signal TLS-ERROR, in which WHAT names
the text, if TEXT has no PART or a damaged PART."
  (with-bio-over-text (bio text)
    (loop for count from 0
          for object = (funcall read bio 0 0 "")
          until (zerop object)
          do (unwind-protect (funcall function object count)
               (funcall release object))
          finally
             (let ((failure (openssl-failure)))
               (cond ((zerop count) (tls-error "There is no ~A in ~A." part what))
                     ;; OpenSSL reports the end of the text as an error, too
                     ((not (equal failure "no start line"))
                      (tls-error "A ~A of ~A cannot be read: ~A." part what failure)))))))

(defun call-with-certificates (function text what)
  "Call FUNCTION with each certificate of TEXT, PEM, and its index from 0."
  (call-with-parts function text what "certificate" #'pem-read-bio-x509 #'x509-free))

(defun call-with-revocation-lists (function text what)
  "Call FUNCTION with each certificate revocation list of TEXT, PEM."
  (call-with-parts (lambda (list index) (declare (ignore index)) (funcall function list))
                   text what "revocation list" #'pem-read-bio-x509-crl #'x509-crl-free))

(defun encrypted-key-p (text)
  "True if a private key in TEXT, PEM, is encrypted (RFC 7468 section 11, RFC 1421)."
  (or (search "-----BEGIN ENCRYPTED PRIVATE KEY-----" text)
      (search "Proc-Type: 4,ENCRYPTED" text)))

(defun call-with-private-key (function text what password)
  "Call FUNCTION with the private key of TEXT, PEM, perhaps encrypted with PASSWORD."
  (with-bio-over-text (bio text)
    ;; without a password OpenSSL would ask for one on the terminal
    (let ((key (pem-read-bio-private-key bio 0 0 (or password ""))))
      (when (zerop key)
        (let ((failure (or (openssl-failure) "unknown reason")))
          (cond ((not (search "PRIVATE KEY-----" text))
                 (tls-error "There is no private key in ~A; give it as :key." what))
                ((not (encrypted-key-p text))
                 (tls-error "The private key in ~A cannot be read: ~A." what failure))
                (password
                 (tls-error "The private key in ~A is encrypted, and :password does not decrypt ~
                             it: ~A." what failure))
                (t (tls-error "The private key in ~A is encrypted; give its :password." what)))))
      (unwind-protect (funcall function key)
        (evp-pkey-free key)))))

;;; The facts in a certificate

(defun first-certificate (text what)
  "Return the CERTIFICATE that comes first in TEXT, PEM."
  (let ((der nil))
    (call-with-certificates (lambda (x509 index)
                              (when (zerop index) (setf der (x509-octets x509))))
                            text what)
    (make-certificate der)))

(defstruct (certificate (:constructor %make-certificate (der)) (:copier nil))
  "See CERTIFICATE-DER and the other readers."
  (der (make-octets 0) :type octets :read-only t) ; the certificate's octets
  (facts nil :type list))               ; the certificate's contents, a plist, read when needed

(document-functions
  certificate-der "The octets of the certificate, DER (RFC 5280). From any thread.")

(defmethod print-object ((certificate certificate) stream)
  (print-unreadable-object (certificate stream :type t)
    (write-string (certificate-subject certificate) stream)))

(defun der-octets (i2d object)
  "Return the DER of OBJECT, an object of OpenSSL, as I2D, one of OpenSSL's i2d_ functions, writes
it."
  (declare (type function i2d))
  (let* ((octets (make-octets (funcall i2d object 0)))
         (place (make-array 1 :element-type '(unsigned-byte 64))))
    (with-pinned-objects (octets place)
      (setf (aref place 0) (sap-int (vector-sap octets)))
      (funcall i2d object (sap-int (vector-sap place))))
    octets))

(defun x509-octets (x509)
  "The DER of X509."
  (der-octets #'i2d-x509 x509))

(defun foreign-octets (address length)
  (let ((octets (make-octets length)))
    (dotimes (i length octets)
      (setf (aref octets i) (sb-sys:sap-ref-8 (int-sap address) i)))))

(defun asn1-octets (string)
  (foreign-octets (asn1-string-get0-data string) (asn1-string-length string)))

(defun octets-number (octets &optional (start 0) (end (length octets)))
  "Return the integer of the OCTETS from START to END, the most significant first. The integer is
computed from its two halves, recursively, because an attacker's certificate may have a serial
number of 100,000 octets, which would take seconds octet by octet."
  (declare (type octets octets) (type index start end))
  (if (<= (- end start) 7)
      (loop with number of-type (unsigned-byte 56) = 0
            for i from start below end
            do (setf number (logior (ash number 8) (aref octets i)))
            finally (return number))
      (let ((middle (ash (+ start end) -1)))
        (logior (ash (octets-number octets start middle) (* 8 (- end middle)))
                (octets-number octets middle end)))))

(defun octets-latin (octets)
  (map 'string #'code-char octets))

(defconstant +xn-flag-rfc2253+ #x1110317)

(defun x509-name-text (name)
  "Return NAME, an X509_NAME, in the form of RFC 2253, such as \"CN=client,O=Example\"."
  (let ((bio (bio-new (bio-s-mem))))
    (unwind-protect
         (progn
           ;; OpenSSL would leave out characters that it cannot write, and so show another name
           (when (minusp (x509-name-print-ex bio name 0 +xn-flag-rfc2253+))
             (tls-error "A name in a certificate cannot be read: ~A."
                        (or (openssl-failure) "unknown reason")))
           (let ((octets (make-octets (bio-ctrl-pending bio))))
             (with-pinned-objects (octets)
               (bio-read bio (sap-int (vector-sap octets)) (length octets)))
             (decode-utf8 octets 0 (length octets))))
      (bio-free bio))))

(defun asn1-text-universal-time (text)
  "The universal time of TEXT, the value of an ASN1_TIME (RFC 5280 section 4.1.2.5)."
  (let* ((short (= 13 (length text)))   ; YYMMDDhhmmssZ, for 1950 to 2049
         (year (parse-integer text :end (if short 2 4))))
    (destructuring-bind (month day hour minute second)
        (loop for at from (if short 2 4) by 2
              repeat 5 collect (parse-integer text :start at :end (+ at 2)))
      (encode-universal-time second minute hour day month
                             (cond ((not short) year) ((< year 50) (+ 2000 year)) (t (+ 1900 year)))
                             0))))

(defun x509-time (time)
  (let ((text (octets-latin (asn1-octets time))))
    (handler-case (asn1-text-universal-time text)
      (error () (tls-error "A time in a certificate cannot be read: ~S." text)))))

(defconstant +nid-subject-alt-name+ 85)

(defun general-name (name)
  "Return NAME, a GENERAL_NAME, as a list of a keyword and a string, or NIL for kinds of names that
are not used."
  (let ((kind (sb-sys:sap-ref-32 (int-sap name) 0))
        (datum (sb-sys:sap-ref-64 (int-sap name) 8)))
    (flet ((text () (octets-latin (asn1-octets datum))))
      (case kind
        (1 (list :email (text)))
        (2 (list :dns (text)))
        (6 (list :uri (text)))
        (7 (let ((octets (asn1-octets datum)))
             (case (length octets)
               (4 (list :ip (number-to-text +af-inet+ octets 0)))
               (16 (list :ip (number-to-text +af-inet6+ octets 0))))))))))

(defun x509-alternative-names (x509)
  (let ((names (x509-get-ext-d2i x509 +nid-subject-alt-name+ 0 0)))
    (unless (zerop names)
      (unwind-protect (loop for i below (sk-num names)
                            for name = (general-name (sk-value names i))
                            when name collect name)
        (general-names-free names)))))

(defun x509-facts (x509)
  (list :subject (x509-name-text (x509-get-subject-name x509))
        :issuer (x509-name-text (x509-get-issuer-name x509))
        :names (x509-alternative-names x509)
        :serial-number (octets-number (asn1-octets (x509-get-serial-number x509)))
        :not-before (x509-time (x509-get0-not-before x509))
        :not-after (x509-time (x509-get0-not-after x509))))

(defun make-certificate (der)
  "Return the certificate of the octets DER, which are parsed at the first access."
  (%make-certificate der))

(defun certificate-fact (certificate name)
  (getf (or (certificate-facts certificate)
            (setf (certificate-facts certificate) (read-facts (certificate-der certificate))))
        name))

(defun call-with-x509 (function der)
  "Call FUNCTION with OpenSSL's form of the certificate DER, octets."
  (open-openssl)
  (let ((place (make-array 1 :element-type '(unsigned-byte 64))))
    (with-pinned-objects (der place)
      (setf (aref place 0) (sap-int (vector-sap der)))
      (let ((x509 (d2i-x509 0 (sap-int (vector-sap place)) (length der))))
        (when (zerop x509)
          (tls-error "These octets are not a certificate: ~A." (openssl-failure)))
        (unwind-protect (funcall function x509)
          (x509-free x509))))))

(defun read-facts (der)
  (call-with-x509 #'x509-facts der))

(defconstant +no-partial-wildcards+ 4)
(defconstant +never-check-subject+ #x20)

(defun certificate-for-p (certificate name)
  "True if CERTIFICATE is for NAME, a host name or a numeric address, by its alternative names (RFC
9525). In the handshake a client checks its server's certificate in the same way."
  (call-with-x509 (lambda (x509)
                    (= 1 (if (make-address name 0)
                             (x509-check-ip-asc x509 name 0)
                             (x509-check-host x509 name 0
                                              (logior +no-partial-wildcards+
                                                      +never-check-subject+)
                                              0))))
                  (certificate-der certificate)))

(macrolet ((define-reader (name key documentation)
             `(defun ,name (certificate)
                ,documentation
                (certificate-fact certificate ,key))))
  (define-reader certificate-subject :subject
    "The subject of CERTIFICATE, in the form of RFC 2253, such as \"CN=client,O=Example\". This
function and the readers below signal TLS-ERROR if the certificate cannot be read, because an end
that does not verify its peer accepts any octets as a certificate. From any thread.")
  (define-reader certificate-issuer :issuer
    "The name of the signer of CERTIFICATE, as RFC 2253 writes it. From any thread.")
  (define-reader certificate-names :names
    "The alternative names (RFC 5280 section 4.2.1.6) of CERTIFICATE, a list of lists (kind text),
where kind is :dns, :uri (such as a SPIFFE identity), :email or :ip. Each character of a text is one
octet of the certificate, which is not checked. From any thread.")
  (define-reader certificate-serial-number :serial-number
    "The serial number of CERTIFICATE, an integer that the issuer has chosen. From any thread.")
  (define-reader certificate-not-before :not-before
    "The time at which CERTIFICATE becomes valid, a universal time. From any thread.")
  (define-reader certificate-not-after :not-after
    "The time until which CERTIFICATE is valid, a universal time. From any thread."))
