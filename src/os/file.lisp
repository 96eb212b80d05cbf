;;;; The files that stand for unix sockets: their identity, their mode, removing them. Paths are
;;;; octets, as the kernel takes them. File data come from statx(2), since its structure is the same
;;;; on all processors.

(in-package #:clgrpc.os)

(define-constants
  (+at-fdcwd+ "AT_FDCWD" -100)
  (+at-symlink-nofollow+ "AT_SYMLINK_NOFOLLOW" #x100)
  (+statx-basic-stats+ "STATX_BASIC_STATS" #x7FF)
  (+statx-octets+ "sizeof (struct statx)" 256)
  (+statx-mode+ "offsetof (struct statx, stx_mode)" 28)
  (+statx-inode+ "offsetof (struct statx, stx_ino)" 32)
  (+statx-device+ "offsetof (struct statx, stx_dev_major)" 136)
  (+file-type-mask+ "S_IFMT" #o170000)
  (+file-type-socket+ "S_IFSOCK" #o140000)
  (+enoent+ "ENOENT" 2))

(defmacro with-path ((sap path) &body body)
  "Evaluate BODY with SAP pointing to the octets PATH and a NUL."
  (let ((octets (gensym "OCTETS")))
    `(let ((,octets (concatenate 'octets ,path '(0))))
       (with-pinned-objects (,octets)
         (let ((,sap (vector-sap ,octets)))
           ,@body)))))

(defun remove-file (path)
  "Remove the file PATH."
  (with-path (sap path)
    (syscall ("unlink" int) (system-area-pointer sap))))

(defun set-file-mode (path mode)
  "Let the users whom MODE names, as for chmod, use the file PATH."
  (with-path (sap path)
    (syscall ("chmod" int) (system-area-pointer sap) ((unsigned 32) mode))))

(defun set-socket-mode (socket mode)
  "Let the file that SOCKET, a unix one, will be bound to get MODE, less the process's umask."
  (syscall ("fchmod" int) (int socket) ((unsigned 32) mode)))

(defun socket-file-identity (path)
  "The identity of the socket at PATH, a list that differs from those of all other sockets, now and
later; NIL if PATH is no socket."
  (let ((status (make-octets +statx-octets+)))
    (with-path (sap path)
      (with-pinned-objects (status)
        (let ((result (syscall ("statx" int) (int +at-fdcwd+) (system-area-pointer sap)
                               (int +at-symlink-nofollow+) ((unsigned 32) +statx-basic-stats+)
                               (system-area-pointer (vector-sap status)))))
          (unless (or (failed-p result)
                      (/= +file-type-socket+
                          (logand +file-type-mask+ (u32le status +statx-mode+))))
            (list (u64le status +statx-inode+) (u64le status +statx-device+))))))))
