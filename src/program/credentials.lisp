;;;; The options by which a server speaks TLS.

(in-package #:clgrpc.program)

(define-shared-options :server-tls
  (tls-cert "FILE" #'identity nil
            "Speak TLS, and show the certificates in FILE (PEM; renewed files are noticed).")
  (tls-key "FILE" #'identity nil
           "The private key of --tls-cert; by default the key is in the same file.")
  ((tls-other "--tls-other") "CERT[,KEY]" #'parse-certificate '()
   "The files of another certificate and of its key, for clients that ask for its names (SNI);
      may be given several times.")
  (client-ca "FILE" #'identity nil
             "Require certificates of clients; an authority whose certificate is in FILE must
      have issued them."))

(defun parse-certificate (string)
  "A list of the files that STRING names: the file of a certificate and, after a comma, the file of
its key."
  (let ((comma (position #\, string)))
    (when (member "" (list (subseq string 0 comma) (if comma (subseq string (1+ comma)) "key"))
                  :test #'string=)
      (refuse "CERT[,KEY] is expected, not ~S" string))
    (list (subseq string 0 comma) (and comma (subseq string (1+ comma))))))

(defun server-credentials (certificate key others client-roots)
  "The credentials that the options :SERVER-TLS mean; nil if these options are not given."
  (flet ((credentials (certificate key &rest more)
           (apply #'loop:tls-credentials :certificate certificate :key key
                  (if client-roots (list* :roots client-roots more) more))))
    (cond (certificate
           (credentials certificate key
                        :others (loop for (certificate key) in others
                                      collect (credentials certificate key))))
          ((or key others client-roots)
           (refuse "--tls-key, --tls-other and --client-ca need --tls-cert")))))
