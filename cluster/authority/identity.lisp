;;;; The identities of a peer, as its certificate has them: SPIFFE identities, which are URIs with a
;;;; trust domain and a path, whole; names of kind DNS; and the common name of the subject if there
;;;; is neither. A certificate with several SPIFFE identities proves none of them, as X.509-SVID has
;;;; it (section 5.1). Upper and lower case differ, since "a" and "A" are two members.

(in-package #:clgrpc.authority)

(defun spiffe-p (text)
  "True if TEXT is a SPIFFE identity, or a pattern of them."
  (uiop:string-prefix-p "spiffe://" text))

(defun common-name (subject)
  "The common name in SUBJECT, a name as RFC 2253 writes it, or nil. A subject with an escaped or a
quoted character anywhere has none: what stands behind that character may look like a name."
  (unless (find-if (lambda (char) (find char "\\\"")) subject)
    (loop for part in (uiop:split-string subject :separator ",+")
          when (uiop:string-prefix-p "CN=" part) return (subseq part 3))))

(defun certificate-identities (names subject)
  "Return the identities of a certificate with NAMES, as CERTIFICATE-NAMES returns them, and
SUBJECT, as CERTIFICATE-SUBJECT does: a list of strings, SPIFFE identities first. From any thread."
  (flet ((texts (kind accepted-p)
           (loop for (actual text) in names
                 when (and (eq kind actual) (funcall accepted-p text)) collect text))
         (plain-p (text) (and (string/= "" text) (not (find #\/ text)))))
    (or (let ((spiffe (texts :uri #'spiffe-p)))
          (append (if (rest spiffe) '() spiffe) (texts :dns #'plain-p)))
        (let ((name (common-name subject)))
          (and name (plain-p name) (list name))))))

(defun call-identities (call)
  "The identities of CALL's peer; none if it has shown no certificate."
  (let* ((security (rpc:call-security call))
         (certificate (and security (loop:security-peer-certificate security))))
    (and certificate
         (certificate-identities (os:certificate-names certificate)
                                 (os:certificate-subject certificate)))))

(defun within-image-p (call)
  "True if CALL, or nil, was made in this image and not over a network."
  (or (null call) (and (rpc:operate other-end call) t)))

(defun call-identity (call)
  "Return the first identity of CALL's peer, a string, or nil if it has shown no certificate or CALL
was made in this image. CALL is the server's end of a call, or nil. From any thread."
  (unless (within-image-p call) (first (call-identities call))))
