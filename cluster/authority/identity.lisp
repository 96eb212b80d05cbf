;;;; The identities in a peer's certificate: its SPIFFE identity, which is a URI with a trust domain
;;;; and a path, as a whole; its DNS names; and the common name of its subject, if the certificate
;;;; has no URI and no DNS name, not even an invalid one. A certificate with several URIs proves no
;;;; SPIFFE identity (X.509-SVID, sections 2 and 5.1). A URI that is not written as SPIFFE-ID
;;;; requires (section 2) is not an identity; so a segment of a path cannot contain further segments
;;;; in an escaped form. Upper and lower case differ, since "a" and "A" are two members.

(in-package #:clgrpc.authority)

(defparameter *spiffe-scheme* "spiffe://" "The prefix of each SPIFFE identity.")

(defun spiffe-p (text)
  "True if TEXT is meant as a SPIFFE identity, or as a pattern of SPIFFE identities."
  (uiop:string-prefix-p *spiffe-scheme* text))

(defconstant +longest-identity+ 2048 "The maximum number of octets of a SPIFFE identity.")

(defun spiffe-identity-p (text)
  "True if TEXT is a SPIFFE identity with a path (SPIFFE-ID, sections 2.1 to 2.3): no port, query or
fragment, nothing percent-encoded, no segment that is empty, \".\" or \"..\"."
  (flet ((of-p (characters start end)
           (loop for i from start below end
                 for char = (char text i)
                 always (or (char<= #\a char #\z) (char<= #\0 char #\9) (find char characters)))))
    (and (spiffe-p text)
         (<= (length text) +longest-identity+)
         (let* ((start (length *spiffe-scheme*)) (path (position #\/ text :start start)))
           (and path
                (< start path (1- (length text)))
                (of-p ".-_" start path)
                (loop for segment in (uiop:split-string (subseq text (1+ path)) :separator "/")
                      always (segment-p segment)))))))

(defun segment-p (text)
  "True if TEXT may be a segment of the path of a SPIFFE identity."
  (and (string/= "" text)
       (not (member text '("." "..") :test #'string=))
       (every (lambda (char)
                (or (char<= #\a char #\z) (char<= #\A char #\Z) (char<= #\0 char #\9)
                    (find char ".-_")))
              text)))

(defun common-name (subject)
  "The common name in SUBJECT, a name as RFC 2253 writes it; nil if it has none. A subject with an
escaped or a quoted character anywhere has no common name, because the text after that character may
look like a name."
  (unless (find-if (lambda (char) (find char "\\\"")) subject)
    (loop for part in (uiop:split-string subject :separator ",+")
          when (uiop:string-prefix-p "CN=" part) return (subseq part 3))))

(defun certificate-identities (names subject)
  "Return the identities of a certificate, a list of strings, the SPIFFE identity first. NAMES and
SUBJECT are values of CERTIFICATE-NAMES and CERTIFICATE-SUBJECT. From any thread."
  (flet ((texts (kind)
           (loop for (actual text) in names
                 when (eq kind actual) collect text))
         (plain-p (text) (and (string/= "" text) (not (find #\/ text)))))
    (let ((uris (texts :uri)) (hosts (texts :dns)) (name (common-name subject)))
      (cond ((or hosts (some (lambda (uri) (spiffe-p (string-downcase uri))) uris))
             (append (and (null (rest uris)) (remove-if-not #'spiffe-identity-p uris))
                     (remove-if-not #'plain-p hosts)))
            ((and name (plain-p name)) (list name))))))

(defun call-identities (call)
  "The identities of CALL's peer; the empty list if it has shown no certificate."
  (let* ((security (rpc:call-security call))
         (certificate (and security (loop:security-peer-certificate security))))
    (and certificate
         (certificate-identities (os:certificate-names certificate)
                                 (os:certificate-subject certificate)))))

(defun within-image-p (call)
  "True if CALL is nil, or was made in this image and not over a network."
  (or (null call) (and (rpc:operate other-end call) t)))

(defun call-identity (call)
  "Return the first identity of CALL's peer, a string, or nil if it has shown no certificate or CALL
was made in this image. CALL is the server's end of a call, or nil. From any thread."
  (unless (within-image-p call) (first (call-identities call))))
