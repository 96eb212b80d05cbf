;;;; The file of a listening unix socket. A server that was killed leaves its file in place. The
;;;; file is replaced if it is a socket on which no process answers. A server that stops removes its
;;;; own file, but not the file of another server that has replaced it. The file never has a wider
;;;; mode than the given one, not even briefly, so no other users can connect.

(in-package #:clgrpc.loop)

(defun unix-file-path (address)
  "Return the path, octets, of the file of ADDRESS, if ADDRESS is that of a unix socket with a file,
else nil."
  (when (= os:+af-unix+ (os:address-family address))
    (multiple-value-bind (name abstract) (os:unix-address-name address)
      (if abstract nil name))))

(defun abandoned-p (address)
  "True if no process listens on ADDRESS, the address of a unix socket."
  (let ((socket (os:open-socket os:+af-unix+)))
    (unless (os:failed-p socket)
      (unwind-protect (= (- os:+econnrefused+) (os:connect-socket socket address))
        (os:close-descriptor socket)))))

(defun remove-abandoned-file (address)
  "Remove the file of ADDRESS if it is a socket on which no process listens; return true if it was
removed."
  (let ((path (unix-file-path address)))
    (and path
         (os:socket-file-identity path)
         (abandoned-p address)
         (not (os:failed-p (os:remove-file path))))))

(defun bind-unix-socket (socket address mode)
  "Bind SOCKET to ADDRESS, the address of a unix socket. If ADDRESS has a file, the file gets MODE.
Return the result of a system call: 0 or a negated errno."
  (let ((path (unix-file-path address)))
    ;; the file is made with this mode, less the bits of the umask; so its mode is never wider
    (os:set-socket-mode socket mode)
    (let ((result (os:bind-socket socket address)))
      (when (and (= result (- os:+eaddrinuse+)) (remove-abandoned-file address))
        (setf result (os:bind-socket socket address)))
      (cond ((or (null path) (os:failed-p result)) result)
            (t (os:set-file-mode path mode))))))

(defun listening-file (address)
  "Return the file of ADDRESS, on which we listen, for REMOVE-LISTENING-FILE. The value has the
file's path and its identity; it is nil if ADDRESS has no file."
  (let ((path (unix-file-path address)))
    (when path (cons path (os:socket-file-identity path)))))

(defun remove-listening-file (file)
  "Remove FILE, which LISTENING-FILE returned, unless another file has taken its place."
  (destructuring-bind (&optional path &rest identity) file
    (when (and identity (equal identity (os:socket-file-identity path)))
      (os:remove-file path))))
