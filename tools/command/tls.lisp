;;;; The options by which commands speak TLS as a client.

(in-package #:clgrpc.tools)

(define-shared-options client-tls
  (tls-ca "FILE" #'identity nil
          "Speak TLS, and trust the certificates in FILE (PEM), or with `system` the system's.")
  (tls-cert "FILE" #'identity nil "The certificates to show a server that asks for them.")
  (tls-key "FILE" #'identity nil
           "The private key of --tls-cert; by default the key is in the same file.")
  (tls-name "NAME" #'identity nil "The name that must be in the server's certificate."))

(defun client-credentials (roots certificate key name &key (prefix "tls") (alpn t))
  "The credentials for the values of the options CLIENT-TLS, or nil if none of these is given.
PREFIX is the beginning of the options' names; ALPN is that of TLS-CREDENTIALS."
  (cond (roots
         (when (and key (not certificate)) (refuse "--~A-key needs --~:*~A-cert" prefix))
         (grpc:tls-credentials :roots (if (string= roots "system") :system roots)
                               :certificate certificate :key key :server-name name
                               :alpn alpn))
        ((or certificate key name)
         (refuse "--~A-cert, --~:*~A-key and --~:*~A-name need --~:*~A-ca" prefix))))
