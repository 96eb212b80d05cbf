;;;; Certificates: their data, and the errors of malformed PEM.

(in-package #:clgrpc.tests.os)

(defun certificate-text (name)
  (uiop:read-file-string (support:certificate-file name)))

(defun certificate-named (name)
  (os:open-openssl)
  (let ((der nil))
    (os::call-with-certificates (lambda (x509 index)
                                  (when (zerop index) (setf der (os::x509-octets x509))))
                                (certificate-text name) name)
    (os:make-certificate der)))

(test certificate-facts
  (let ((certificate (certificate-named "client.pem"))
        (now (get-universal-time))
        (day (* 24 60 60)))
    (is (equal "O=clgrpc tests,CN=client" (os:certificate-subject certificate)))
    (is (equal "CN=clgrpc test root" (os:certificate-issuer certificate)))
    (is (equal '((:uri "spiffe://test.example/client") (:dns "client.test.example")
                 (:email "client@test.example") (:ip "::1"))
               (os:certificate-names certificate)))
    (is (<= (- now (* 2 day)) (os:certificate-not-before certificate) (+ now day)))
    (is (<= (+ now (* 28 day)) (os:certificate-not-after certificate) (+ now (* 31 day))))
    (is (< 0 (os:certificate-serial-number certificate) (expt 2 64)))
    (is (search "CN=client" (princ-to-string certificate)))))

(test certificates-leave-no-foreign-memory
  "However the function ends that gets them."
  (os:open-openssl)
  (let ((text (certificate-text "client.pem")) (before 0))
    (flet ((get-certificates (count function)
             (dotimes (i count)
               (catch 'found (os::call-with-certificates function text "text")))))
      (get-certificates 1 (constantly nil))
      (setf before (support:foreign-octets))
      (get-certificates 100 (constantly nil))
      (get-certificates 100 (fn (_x509 _index) (throw 'found nil)))
      (is (> 100000 (- (support:foreign-octets) before))))))

(defun der-element (tag &rest parts)
  "The DER of TAG and PARTS, octets, of 65,536 octets at least."
  (let* ((contents (apply #'concatenate 'octets parts)) (length (length contents)))
    (concatenate 'octets (octets-of tag #x83 (ldb (byte 8 16) length) (ldb (byte 8 8) length)
                                    (ldb (byte 8 0) length))
                 contents)))

(defun with-serial-number (der octets)
  "DER with the serial number OCTETS, whose signature is then wrong. DER is of a certificate of 256
octets at least with a serial number of less than 128 octets."
  (let* ((tbs 4)                        ; the header of the part that is signed
         (tbs-end (+ tbs 4 (u16be der (+ tbs 2))))
         (serial (+ tbs 4 5)))          ; after the version
    (assert (and (= #x82 (aref der 1) (aref der (1+ tbs))) (= 2 (aref der serial))))
    (der-element #x30
                 (der-element #x30 (subseq der (+ tbs 4) serial) (der-element 2 octets)
                              (subseq der (+ serial 2 (aref der (1+ serial))) tbs-end))
                 (subseq der tbs-end))))

(test a-serial-number-of-any-length-is-read-at-once
  "An untrusted server may show a certificate with a serial number of 100,000 octets, whose names
are read for the report."
  (let* ((octets (let ((octets (make-octets 66000)))
                   (dotimes (i 66000 octets) (setf (aref octets i) (1+ (mod i 100))))))
         (certificate (os:make-certificate
                       (with-serial-number (os:certificate-der (certificate-named "client.pem"))
                         octets)))
         (before (sb-ext:get-bytes-consed)))
    (is (equal "O=clgrpc tests,CN=client" (os:certificate-subject certificate)))
    (is (> 50000000 (- (sb-ext:get-bytes-consed) before)))
    (is (string= (format nil "~(~{~2,'0X~}~)" (coerce octets 'list))
                 (format nil "0~(~X~)" (os:certificate-serial-number certificate))))))

(test certificate-without-names
  (is (equal '() (os:certificate-names (certificate-named "ca.pem")))))

(test certificate-times
  (flet ((time-of (text)
           (let ((octets (ascii-octets text)))
             (cl:handler-case (os::asn1-text-universal-time (map 'string #'code-char octets))
               (error (error) error)))))
    (is (= (encode-universal-time 59 58 23 31 12 1999 0) (time-of "991231235859Z")))
    (is (= (encode-universal-time 0 0 0 1 1 2049 0) (time-of "490101000000Z")))
    (is (= (encode-universal-time 0 0 0 1 1 2050 0) (time-of "20500101000000Z")))))

(test octets-that-are-no-certificate
  (signals os:tls-error (os:certificate-subject (os:make-certificate (octets-of 1 2 3)))))

(test pem-that-is-none
  (os:open-openssl)
  (flet ((complaint (text)
           (handler-case (progn (os::call-with-certificates #'list text "the text") nil)
             (os:tls-error (error) (os:tls-error-text error)))))
    (is (equal "There is no certificate in the text." (complaint "")))
    (is (equal "There is no certificate in the text." (complaint (certificate-text "client.key"))))
    (let ((text (certificate-text "client.pem")))
      (is (null (complaint text)))
      (is (null (complaint (format nil "some words~%~A~%more words" text))))
      (is (search "cannot be read" (complaint (concatenate 'string text (subseq text 0 200))))))))

(test private-keys
  (flet ((complaint (name password)
           (handler-case (progn (os::call-with-private-key #'identity (certificate-text name) name
                                                           password)
                                nil)
             (os:tls-error (error) (os:tls-error-text error)))))
    (os:open-openssl)
    (is (null (complaint "client.key" nil)))
    (is (null (complaint "client.key" "needless")))
    (is (null (complaint "locked.key" "open")))
    (is (search "locked.key is encrypted, and :password does not decrypt it"
                (complaint "locked.key" "wrong")))
    (is (equal "The private key in locked.key is encrypted; give its :password."
               (complaint "locked.key" nil)))
    (is (equal "There is no private key in client.pem; give it as :key."
               (complaint "client.pem" nil)))))

(defun certificate-with (text replacement)
  "The server's certificate with REPLACEMENT, as long as TEXT, in place of TEXT, wherever it
occurs."
  (let ((der (copy-seq (os:certificate-der (certificate-named "server.pem"))))
        (octets (ascii-octets text)))
    (loop for at = (search octets der) then (search octets der :start2 (1+ at))
          while at do (replace der replacement :start1 at))
    (os:make-certificate der)))

(test certificates-of-anybody
  ;; each part of a certificate becomes text or gives a TLS-ERROR
  (is (equal "O=clgrpc tests,CN=ser\\00er" (os:certificate-subject
                                            (certificate-with "server" (octets-of 115 101 114 0)))))
  (signals os:tls-error
    (os:certificate-subject (certificate-with "server" (octets-of 115 #xFF))))
  (let ((names (os:certificate-names (certificate-with "localhost" (octets-of 108 0 #xFF #xC3)))))
    (is (equal (coerce '(#\l #\Nul #.(code-char 255) #.(code-char 195) #\l #\h #\o #\s #\t) 'string)
               (second (first names)))))
  (let ((der (os:certificate-der (certificate-named "server.pem"))))
    (let* ((at (+ 2 (search (octets-of 23 13) der))) (time (subseq der at (+ at 6))))
      (signals os:tls-error
        (os:certificate-not-before
         (certificate-with (map 'string #'code-char time) (ascii-octets "991399")))))))

(test certificates-damaged
  ;; any single octet may be changed
  (let ((der (os:certificate-der (certificate-named "client.pem"))))
    (is-true (loop for at below (length der)
                   always (loop for octet in '(0 #xFF #x80)
                                always (let ((copy (copy-seq der)))
                                         (setf (aref copy at) octet)
                                         (handler-case
                                             (let ((certificate (os:make-certificate copy)))
                                               (os:certificate-names certificate)
                                               (stringp (os:certificate-subject certificate)))
                                           (os:tls-error () t))))))))
