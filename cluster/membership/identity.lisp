;;;; Who may be whom: with mutual TLS a peer is one of the names that its certificate has, and may
;;;; join, renew and leave as that one only. The names are the alternative names of kind DNS in
;;;; full, and of a SPIFFE identity what stands behind the last slash; a certificate that has
;;;; neither is for the common name of its subject. Upper and lower case are not the same, since
;;;; "a" and "A" are two members.

(in-package #:clgrpc.cluster)

(defun common-name (subject)
  "The common name in SUBJECT, a name as RFC 2253 writes it, or nil. A subject with an escaped or a
quoted character anywhere is none of a node's: what stands behind it may look like a name."
  (unless (find-if (lambda (char) (find char "\\\"")) subject)
    (loop for part in (uiop:split-string subject :separator ",+")
          when (uiop:string-prefix-p "CN=" part) return (subseq part 3))))

(defun identity-names (names subject)
  "The names that a certificate with NAMES, as CERTIFICATE-NAMES has them, and SUBJECT is for."
  (or (loop for (kind text) in names
            when (eq :dns kind) collect text
            when (and (eq :uri kind) (uiop:string-prefix-p "spiffe://" text))
              collect (subseq text (1+ (position #\/ text :from-end t))))
      (let ((name (common-name subject)))
        (and name (list name)))))

(defun peer-certificate (call)
  "The certificate that the peer of CALL has shown, or nil."
  (let ((security (rpc:call-security call)))
    (and security (loop:security-peer-certificate security))))

(defun check-identity (call name required)
  "Signal IDENTITY-REFUSED unless the peer of CALL may be the node NAME: its certificate is for that
name, or it has shown none and none is REQUIRED."
  (let ((certificate (and call (peer-certificate call))))
    (cond (certificate
           (let ((names (identity-names (os:certificate-names certificate)
                                        (os:certificate-subject certificate))))
             (unless (find name names :test #'string=)
               (refuse-membership 'identity-refused
                                  "the certificate is for ~:[nobody~;~:*~{~A~^, ~}~], not for ~A"
                                  (mapcar #'printable-text names) (printable-text name)))))
          (required
           (refuse-membership 'identity-refused "who joins as ~A shows a certificate for it"
                              (printable-text name))))))
